"""Files of results: metrics as JSON, plots as CSV."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from convrec.project.atomic import write_text
from convrec.project.errors import InputError


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a metrics file, creating its folder; floats keep six digits."""
    write_text(path, json.dumps(_rounded(value), indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file that a stage wrote. Raises `InputError` if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); remove it, and make it again with `dvc repro`") from None


def write_plot(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write the rows of a plot as CSV, creating its folder."""
    write_text(path, pd.DataFrame(list(rows)).to_csv(index=False, float_format="%.6g"))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return round(value, 6) if isinstance(value, float) else value
