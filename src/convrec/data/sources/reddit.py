"""Reddit-v2 as published: a Hugging Face `DatasetDict` saved to disk, with its own splits, and a catalog file.

Its prompts hold instruction and conversation in one message, so `common.instruction` stays empty. Source: the data
of the Rank-GRPO paper (arXiv 2510.20150).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from convrec.data.catalog_files import load_catalog
from convrec.data.conversations import SPLITS
from convrec.data.quarantine import Quarantine
from convrec.data.row_files import Row
from convrec.data.rows import usable_rows
from convrec.data.schemas import spooled
from convrec.data.sources.source import Source
from convrec.project.errors import InputError

COLUMNS = {"prompt": "messages", "groundtruth_with_release_year": "groundtruth", "seen_titles": "seen_titles"}


def read_reddit(folder: Path, quarantine: Quarantine, *, catalog: str) -> Source:
    """Return the catalog, the canonical rows and their splits; rows that share a prompt share its `prompt_id`.

    `catalog` is the name of its file.

    Raises `InputError` on a folder that is no such `DatasetDict`, or lacks a split or a column.
    """
    from datasets import DatasetDict, load_from_disk  # noqa: PLC0415  (seconds to import; only this source needs it)

    items = load_catalog(folder / catalog, quarantine)
    try:
        loaded = cast(DatasetDict, load_from_disk(str(folder)))
        saved = {name: loaded[name].select_columns(list(COLUMNS)).rename_columns(COLUMNS) for name in SPLITS}
        for split in saved.values():
            split.data.table.validate(full=True)  # otherwise Arrow reads beyond the end of a damaged file
    except Exception as error:  # damaged files can raise almost any exception
        raise InputError(
            f"data.path = {str(folder)!r}: no readable DatasetDict of {', '.join(SPLITS)} with the columns "
            f"{', '.join(COLUMNS)} ({' '.join(str(error).split())[:200]}); name the folder that `save_to_disk` wrote"
        ) from None

    def rows() -> Iterator[Row]:
        for name, split in saved.items():
            raw_rows = ((f"{name}:{number}", row) for number, row in enumerate(split, start=1))
            for row in usable_rows(raw_rows, items, quarantine):
                yield row | {"split": name}

    return Source(items, spooled(rows())).filled("check the folder that data.path names")
