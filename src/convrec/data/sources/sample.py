"""The embedded world as files in the project's own schema: an example of a team's monthly files (docs/data.md)."""

import json
from pathlib import Path

import pandas as pd

from convrec.data.sources.synthetic import FILMS, embedded_catalog, simulate
from convrec.project.atomic import write_text
from convrec.project.errors import InputError

FIRST_MONTH, NUM_MONTHS = "2022-01", 12
_ANSWER_LENGTH = 20  # of the oracle's lists, which are not written


def write_sample(folder: Path, until: str, num_conversations: int, seed: int) -> list[Path]:
    """Write `catalog.csv` and one `conversations-MONTH.jsonl` for each month of 2022 up to `until`; return what is new.

    The year's `num_conversations` are the same whatever the last month. A file that is there already stays as it is.
    Raises `InputError` on a month that is not of 2022.
    """
    months = [str(month) for month in pd.period_range(FIRST_MONTH, periods=NUM_MONTHS, freq="M")]
    if until not in months:
        raise InputError(f"--until {until}: the sample has the months {months[0]} to {months[-1]}")
    folder.mkdir(parents=True, exist_ok=True)
    rows, _ = simulate(embedded_catalog(), seed, num_conversations, months, _ANSWER_LENGTH)
    texts = {"catalog.csv": FILMS.read_text(encoding="utf-8")}
    fields = [name for name in rows if name not in ("prompt_id", "user_id")]
    for month in months[: months.index(until) + 1]:
        chosen = rows.loc[rows["date"].str.startswith(month), fields].sort_values("date", kind="stable")
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in chosen.to_dict("records")]
        texts[f"conversations-{month}.jsonl"] = "".join(lines)
    written = [folder / name for name in texts if not (folder / name).exists()]
    for path in written:
        write_text(path, texts[path.name])
    return written
