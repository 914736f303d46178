"""Files that several stages read or write: metrics as JSON, plots as CSV, the catalog, the rows to compare on."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from convrec.config import Params
from convrec.data.catalog import Catalog
from convrec.data.conversations import distinct_prompts, read_rows
from convrec.errors import InputError
from convrec.files.atomic import write_text
from convrec.paths import Paths

_REMAKE = "remove it, and make it again with `dvc repro`"
# The columns of a file of demonstrations that hold the lists after each step; `demonstration` is what SFT learns.
STEP_COLUMNS = {
    "teacher": "teacher",
    "remap": "remap",
    "reflect": "reflect",
    "collaborative": "collaborative",
    "adjust": "demonstration",
}


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a metrics file, creating its folder; floats keep six digits."""
    write_text(path, json.dumps(_rounded(value), indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file that a stage wrote; raises `InputError` where it holds anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({str(error)[:200]}); {_REMAKE}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: a JSON object is needed, not {type(value).__name__}; {_REMAKE}")
    return value


def write_plot(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write the rows of a plot as CSV, creating its folder."""
    write_text(path, pd.DataFrame(list(rows)).to_csv(index=False, float_format="%.6g"))


def read_catalog(path: Path) -> Catalog:
    """Return the catalog of a canonical Parquet file."""
    return Catalog.from_frame(pd.read_parquet(path))


def read_test_rows(params: Params, paths: Paths) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows and the distinct prompts of the test split that systems are compared on."""
    return read_split_rows(params, paths, "test")


def read_split_rows(params: Params, paths: Paths, split: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows and the distinct prompts of a split, of its first `evaluate.max_prompts` prompts alone."""
    rows = read_rows(paths.split(split))
    prompts = distinct_prompts(rows)[: params.evaluate.max_prompts]
    kept = {row["prompt_id"] for row in prompts}
    return [row for row in rows if row["prompt_id"] in kept], prompts


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return round(value, 6) if isinstance(value, float) else value
