"""The embedded world as files in the project's own schema: an example of a team's monthly files (docs/data.md)."""

import csv
import io
import json
from pathlib import Path

import pandas as pd

from convrec.data.catalog import build_catalog
from convrec.data.quarantine import Quarantine
from convrec.data.sources.synthetic import embedded_rows, simulate
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
    films = embedded_rows()
    catalog, _ = build_catalog(films, ("genres", "keywords"), Quarantine())
    rows, _ = simulate(catalog, seed, num_conversations, months, _ANSWER_LENGTH)
    written = []
    if not (folder / "catalog.csv").exists():
        text = io.StringIO()
        writer = csv.DictWriter(text, list(films[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(films)
        write_text(folder / "catalog.csv", text.getvalue())
        written.append(folder / "catalog.csv")
    fields = [name for name in rows if name not in ("prompt_id", "user_id")]
    for month in months[: months.index(until) + 1]:
        path = folder / f"conversations-{month}.jsonl"
        if path.exists():
            continue
        chosen = rows.loc[rows["date"].str.startswith(month), fields].to_dict("records")
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in sorted(chosen, key=lambda row: row["date"])]
        write_text(path, "".join(lines))
        written.append(path)
    return written
