"""Purchases of Amazon's users in MiniOneRec's layout: histories and their next item, in three splits (docs/data.md).

`info/NAME.txt` holds the items (semantic id, title and id, with tabs between), and `train`, `valid` and `test` hold
`NAME.csv` with a user, the ids of a history in order of time, and the id of the next item. Source: Kong et al. 2025,
"MiniOneRec: An Open-Source Framework for Scaling Generative Recommendation".
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from convrec.data.catalog import Catalog
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
                    user, places = usable_user(user), [_place(indices, own) for own in (*_ids(history), item)]
                except ValueError as problem:
                    quarantine.add("interactions", f"{split}:{number}", str(problem), f"{history} (next: {item})")
                    continue
                rng = user_rng(seed, f"{user} {history}")
                yield _row(f"{split}-{number}", user, places, items, templates, rng) | {"split": split}

    found = spooled(rows())
    reasons = quarantine.examples("interactions") or "it is empty"
    return Source(items, found).filled(f"its file has no usable row ({reasons})")


def _items(path: Path) -> list[Row]:
    """Return the rows of the item file."""
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


def _place(indices: Mapping[str, int], own_id: Any) -> int:
    place = indices.get(str(own_id))
    if place is None:
        raise ValueError(f"the item file has no id {own_id!s:.40}")
    return place


def _row(
    key: str, user: str, places: list[int], catalog: Catalog, templates: Templates, rng: np.random.Generator
) -> dict[str, Any]:
    """Return the canonical row of a history and its next item, the last of the `places` in the catalog."""
    *history, last = (catalog.items[place] for place in places)
    lines = [str(item) for item in history]
    messages = templates.write(list(dict.fromkeys(reversed(lines)))[::-1], [], [], rng)
    return {
        "conversation_id": key,
        "prompt_id": prompt_key(messages),
        "user_id": user,
        "date": "",
        "messages": messages,
        "groundtruth": [{"title": last.title, "year": last.year}],
        "seen_titles": lines,  # in order of time, an item that was bought again twice
    }
