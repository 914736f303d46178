"""Reddit-v2 as published: a Hugging Face `DatasetDict` saved to disk, with its own splits, and a catalog file.

Its prompts hold instruction and conversation in one message, so `common.instruction` stays empty. Source: the data
of the Rank-GRPO paper (arXiv 2510.20150).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from convrec.data.catalog_files import load_catalog
from convrec.data.conversations import SPLITS, require_filled
from convrec.data.quarantine import Quarantine
from convrec.data.rows import usable_rows
from convrec.data.sources.source import Source
from convrec.project.errors import InputError

COLUMNS = {"prompt": "messages", "groundtruth_with_release_year": "groundtruth", "seen_titles": "seen_titles"}

if TYPE_CHECKING:
    from datasets import Dataset


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Raise any exception of the block as an `InputError` that names the folder."""
    try:
        yield
    except Exception as error:  # damaged files can raise almost any exception
        raise InputError(
            f"data.path = {str(folder)!r}: no readable saved DatasetDict ({' '.join(str(error).split())[:200]}); "
            "name the folder that `save_to_disk` wrote, or write it again"
        ) from None


def _raw_rows(folder: Path, name: str, split: "Dataset") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a split with their numbers."""
    with _named(folder):
        named = split.select_columns(list(COLUMNS)).rename_columns(COLUMNS)
        named.data.table.validate(full=True)  # otherwise Arrow reads beyond the end of a damaged file
        for number, row in enumerate(named, start=1):
            yield f"{name}:{number}", row


def read_reddit(folder: Path, quarantine: Quarantine, *, catalog: str) -> Source:
    """Return the catalog, the canonical rows and their splits; rows that share a prompt share its `prompt_id`.

    `catalog` is the name of its file.

    Raises `InputError` on a folder that is no such `DatasetDict`, or lacks a split or a column.
    """
    from datasets import DatasetDict, load_from_disk  # noqa: PLC0415  (seconds to import; only this source needs it)

    items = load_catalog(folder / catalog, quarantine)
    with _named(folder):
        loaded = load_from_disk(str(folder))
    if not isinstance(loaded, DatasetDict):
        raise InputError(f"data.path = {str(folder)!r}: one dataset, not a DatasetDict of {', '.join(SPLITS)}")
    splits = {}
    for name in SPLITS:
        if name not in loaded:
            raise InputError(f"data.path = {str(folder)!r}: split {name!r} is missing (found {sorted(loaded)})")
        for column in COLUMNS:
            if column not in loaded[name].column_names:
                raise InputError(f"data.path = {str(folder)!r}: split {name!r}: column {column!r} is missing")
        splits[name] = pd.DataFrame(usable_rows(_raw_rows(folder, name, loaded[name]), items, quarantine))
    rows = pd.concat(require_filled(splits, "check the folder that data.path names"), names=["split"])
    rows = rows.reset_index("split").reset_index(drop=True)
    return Source(items, rows, rows.pop("split"))
