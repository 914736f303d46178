"""Purchases of Amazon's users in MiniOneRec's layout: histories and their next item, in three splits (docs/data.md).

`info/NAME.txt` holds the items (semantic id, title and id, with tabs between), and `train`, `valid` and `test` hold
`NAME.csv` with a user, the ids of a history in order of time, and the id of the next item. Source: Kong et al. 2025,
"MiniOneRec: An Open-Source Framework for Scaling Generative Recommendation".
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from convrec.data.conversations import prompt_key
from convrec.data.csv_files import decode, scan_csv
from convrec.data.json_lines import numbered_lines
from convrec.data.quarantine import Quarantine
from convrec.data.schemas import spooled
from convrec.data.sources.interactions import Templates, user_rng
from convrec.data.sources.item_files import ID, Row, index_items
from convrec.data.sources.source import Source
from convrec.data.titles import usable_user
from convrec.project.errors import InputError

FOLDERS = {"train": "train", "validation": "valid", "test": "test"}
_COLUMNS = ("user_id", "history_item_id", "item_id")


def read_amazon(folder: Path, quarantine: Quarantine, *, catalog: str, domain: tuple[str, str], seed: int) -> Source:
    """Return the catalog, the canonical rows, and their splits: those of the files.

    `catalog` is the name of the item file, which the files of the splits share. Each id is an item. A row names its
    history, and its ground truth is the next item. `domain` has the words for one item and for several. Raises
    `InputError` if a file cannot be read, or none of its rows can be used.
    """
    paths = {split: folder / name / f"{Path(catalog).stem}.csv" for split, name in FOLDERS.items()}
    for path in paths.values():
        if not path.is_file():
            remedy = f"data.path must hold {', '.join(FOLDERS.values())} with a CSV named as the file of data.catalog"
            raise InputError(f"{path}: no such file; {remedy}")
    items, indices = index_items(folder / catalog, _items(folder / catalog), quarantine)
    templates = Templates(*domain)

    def rows() -> Iterator[dict[str, Any]]:
        for split, path in paths.items():
            for number, user, history, item in _cells(path):
                quarantine.count("interactions")
                try:
                    user, ids = usable_user(user), list(map(str, (*_ids(history), item)))
                    if missing := [own for own in ids if own not in indices]:
                        raise ValueError(f"the item file has no id {missing[0]:.40}")
                except ValueError as problem:
                    quarantine.add("interactions", f"{split}:{number}", str(problem), f"{history} (next: {item})")
                    continue
                *before, last = (items.items[indices[own]] for own in ids)
                lines, rng = list(map(str, before)), user_rng(seed, f"{user} {history}")
                messages = templates.write(list(dict.fromkeys(reversed(lines)))[::-1], [], [], rng)
                yield {
                    "conversation_id": f"{split}-{number}",
                    "prompt_id": prompt_key(messages),
                    "user_id": user,
                    "date": "",
                    "messages": messages,
                    "groundtruth": [{"title": last.title, "year": last.year}],
                    "seen_titles": lines,  # in order of time, an item that was bought again twice
                    "split": split,
                }

    found = spooled(rows())
    reasons = quarantine.examples("interactions") or "it is empty"
    return Source(items, found).filled(f"its file has no usable row ({reasons})")


def _items(path: Path) -> list[Row]:
    rows: list[Row] = []
    for place, line in numbered_lines(path):
        fields = decode(line).rstrip("\r\n").split("\t")
        if len(fields) != 3:
            raise InputError(f"{path}: row {place}: {len(fields)} fields, not 3; take MiniOneRec's own file")
        rows.append({"title": fields[1], ID: fields[2]})
    return rows


def _cells(path: Path) -> Iterator[tuple[Any, ...]]:
    """Return the rows of a split: their number from 1, and the cells of `_COLUMNS`."""
    try:
        rows = scan_csv(path).select(pl.col(_COLUMNS).fill_null("").str.strip_chars()).collect()
    except pl.exceptions.PolarsError as error:
        reason = str(error).split("\n")[0][:200]
        raise InputError(f"{path}: not readable as CSV with {', '.join(_COLUMNS)} ({reason})") from None
    return rows.with_row_index(offset=1).iter_rows()


def _ids(history: str) -> list[Any]:
    """Return the ids of a history, such as `[3466, 2697]`."""
    try:
        ids = json.loads(history)
    except (ValueError, RecursionError):
        ids = None
    if not isinstance(ids, list) or not ids:
        raise ValueError("history_item_id is no list of ids")
    return ids
