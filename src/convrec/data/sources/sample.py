"""The embedded world as files: an example of a team's monthly conversations, or of its log (docs/data.md)."""

import json
from pathlib import Path

import pandas as pd

from convrec.data.sources.synthetic import FILMS, embedded_catalog, simulate
from convrec.project.atomic import write_text
from convrec.project.errors import InputError

FIRST_MONTH, NUM_MONTHS = "2022-01", 12
_ANSWER_LENGTH = 20  # of the oracle's lists, which are not written


def write_sample(folder: Path, until: str, num_conversations: int, seed: int, as_log: bool = False) -> list[Path]:
    """Write `catalog.csv` and one `conversations-MONTH.jsonl` for each month of 2022 up to `until`; return what is new.

    With `as_log`, `events.csv` has what their users liked and disliked, in place of the conversations. The year's
    `num_conversations` are the same whatever the last month. A file that is there already stays as it is. Raises
    `InputError` on a month that is not of 2022.
    """
    months = [str(month) for month in pd.period_range(FIRST_MONTH, periods=NUM_MONTHS, freq="M")]
    if until not in months:
        raise InputError(f"--until {until}: the sample has the months {months[0]} to {months[-1]}")
    folder.mkdir(parents=True, exist_ok=True)
    rows, _ = simulate(embedded_catalog(), seed, num_conversations, months, _ANSWER_LENGTH)
    rows = rows[rows["date"].str[:7] <= until].sort_values("date", kind="stable")
    texts = _log(rows) if as_log else {"catalog.csv": FILMS.read_text(encoding="utf-8")}
    fields = [name for name in rows if name not in ("prompt_id", "user_id")]
    for month, chosen in () if as_log else rows[fields].groupby(rows["date"].str[:7]):
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in chosen.to_dict("records")]
        texts[f"conversations-{month}.jsonl"] = "".join(lines)
    written = [folder / name for name in texts if not (folder / name).exists()]
    for path in written:
        write_text(path, texts[path.name])
    return written


def _log(rows: pd.DataFrame) -> dict[str, str]:
    """Return the texts of a catalog with ids, and of a log: a day for each item that a conversation's user judged."""
    films = pd.read_csv(FILMS, dtype=str)
    ids = {title: f"m{place}" for place, title in enumerate(films["title"], start=1)}
    events = []
    for user, date, seen, disliked, accepted in rows[
        ["conversation_id", "date", "seen_titles", "disliked_titles", "groundtruth"]
    ].itertuples(index=False):
        for place, title in enumerate([*seen, *(item["title"] for item in accepted)]):
            day = pd.Timestamp(date) + pd.Timedelta(place, "D")
            events.append((user, ids[title], "dislike" if title in disliked else "like", day.date()))
    log = pd.DataFrame(events, columns=["user_id", "item_id", "event", "date"])
    films.insert(0, "item_id", list(ids.values()))
    return {"catalog.csv": films.to_csv(index=False), "events.csv": log.to_csv(index=False)}
