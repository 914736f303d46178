"""Reddit-v2 as it is published: a Hugging Face `DatasetDict` saved to disk, its splits made, beside a catalog file.

Its prompts hold instruction and conversation in one message, so `common.instruction` stays empty. Source: the data
of the Rank-GRPO paper (arXiv 2510.20150).
"""

from pathlib import Path
from typing import Any

import pandas as pd

from convrec.data.catalog import Catalog, LeftOut, build_catalog, read_rows
from convrec.data.conversations import SPLITS, prompt_key, require_filled
from convrec.errors import InputError

_REQUIRED = ("prompt", "groundtruth_with_release_year", "seen_titles")


def _truths(pairs: list, source: str, left_out: LeftOut) -> list[dict[str, Any]]:
    """Return the ground truth that has a year; what lies outside the catalog stays, and can never be a hit."""
    truths = []
    for title, year in pairs:
        try:
            truths.append({"title": str(title), "year": int(year)})
        except (TypeError, ValueError):
            left_out.add("groundtruth", source, "no year", f"{title} ({year})")
    return truths


def read_reddit(folder: Path, catalog_name: str, left_out: LeftOut) -> tuple[Catalog, dict[str, pd.DataFrame]]:
    """Return the catalog and the splits as canonical rows; rows that share a prompt share its `prompt_id`.

    Raises `InputError` on a folder that is no such `DatasetDict`, or lacks a split or a column.
    """
    from datasets import DatasetDict, load_from_disk  # noqa: PLC0415  (seconds to import; only this source needs it)

    catalog = build_catalog(read_rows(folder / catalog_name), (), left_out)
    try:
        loaded = load_from_disk(str(folder))
    except (FileNotFoundError, ValueError) as error:
        raise InputError(f"data.path = {str(folder)!r}: no saved DatasetDict ({error})") from None
    if not isinstance(loaded, DatasetDict):
        raise InputError(f"data.path = {str(folder)!r}: one dataset, not a DatasetDict of {', '.join(SPLITS)}")
    splits = {}
    for name in SPLITS:
        if name not in loaded:
            raise InputError(f"data.path = {str(folder)!r}: split {name!r} is missing (found {sorted(loaded)})")
        for column in _REQUIRED:
            if column not in loaded[name].column_names:
                raise InputError(f"data.path = {str(folder)!r}: split {name!r}: column {column!r} is missing")
        rows = []
        for number, row in enumerate(loaded[name], start=1):
            truths = _truths(row["groundtruth_with_release_year"], f"{name}:{number}", left_out)
            if not truths:
                left_out.add("conversations", f"{name}:{number}", "no ground truth", row["prompt"])
                continue
            messages = [{"role": m["role"], "content": m["content"]} for m in row["prompt"]]
            key = prompt_key(messages)
            seen = [str(title) for title in row["seen_titles"]]
            rows.append(
                {"prompt_id": key, "date": "", "messages": messages, "groundtruth": truths, "seen_titles": seen}
            )
        splits[name] = pd.DataFrame(rows)
    return catalog, require_filled(splits, "check the folder that data.path names")
