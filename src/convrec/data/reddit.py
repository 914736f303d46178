"""Reddit-v2 as it is published: a Hugging Face `DatasetDict` saved to disk, its splits made, beside a catalog file.

Its prompts hold instruction and conversation in one message, so `common.instruction` stays empty. Source: the data
of the Rank-GRPO paper (arXiv 2510.20150).
"""

from pathlib import Path

import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.catalog_files import load_catalog
from convrec.data.conversations import SPLITS, require_filled
from convrec.data.quarantine import Quarantine
from convrec.data.rows import usable_rows
from convrec.errors import InputError

COLUMNS = {"prompt": "messages", "groundtruth_with_release_year": "groundtruth", "seen_titles": "seen_titles"}


def read_reddit(folder: Path, catalog_name: str, quarantine: Quarantine) -> tuple[Catalog, dict[str, pd.DataFrame]]:
    """Return the catalog and the splits as canonical rows; rows that share a prompt share its `prompt_id`.

    Raises `InputError` on a folder that is no such `DatasetDict`, or lacks a split or a column.
    """
    from datasets import DatasetDict, load_from_disk  # noqa: PLC0415  (seconds to import; only this source needs it)

    catalog = load_catalog(folder / catalog_name, quarantine)
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
        for column in COLUMNS:
            if column not in loaded[name].column_names:
                raise InputError(f"data.path = {str(folder)!r}: split {name!r}: column {column!r} is missing")
        named = loaded[name].select_columns(list(COLUMNS)).rename_columns(COLUMNS)
        numbered = ((f"{name}:{number}", row) for number, row in enumerate(named, start=1))
        splits[name] = pd.DataFrame(usable_rows(numbered, quarantine))
    return catalog, require_filled(splits, "check the folder that data.path names")
