"""Files of numbers that came from elsewhere: sparse matrices as arrays, and what is wrong in a damaged file."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from scipy import sparse

from convrec.project.errors import InputError

LARGEST = 10**9  # of a number in a file


@contextmanager
def intact(path: Path) -> Iterator[None]:
    """Raise `InputError`, which names the file and what is wrong in it, for what reading a damaged one raises."""
    try:
        yield
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            value = f"{'.'.join(map(str, first['loc']))} = {first['input']!r:.80}: " if first["loc"] else ""
            reason = value + first["msg"]
        remedy = "make it again (`dvc repro --force evidence guidance`), or use another version"
        raise InputError(f"{path}: damaged ({reason}); {remedy}") from None


class Saved(BaseModel, strict=True, allow_inf_nan=False):
    """Settings in a file, without silent conversions."""


def csr_arrays(name: str, matrix: Any) -> dict[str, np.ndarray]:
    """Return a sparse matrix as arrays under names that begin with `name`."""
    matrix = sparse.csr_array(matrix)
    shape = np.array(matrix.shape, dtype=np.int64)
    parts = {"data": matrix.data.astype(np.float32), "columns": matrix.indices, "starts": matrix.indptr}
    return {f"{name}.{part}": compact(value) for part, value in parts.items()} | {f"{name}.shape": shape}


def compact(values: np.ndarray) -> np.ndarray:
    """Return the values in the smallest type that holds them all: integers, else float16, else their own."""
    if (values == np.trunc(values)).all():
        return values.astype(np.min_scalar_type(-1 - int(np.abs(values).max(initial=0))))
    return values.astype(np.float16) if (as_saved(values) == values).all() else values


def as_saved(values: Any) -> Any:
    """Return a matrix, dense or sparse, of float32 with its numbers as float16 has them: `compact` then halves it."""
    if sparse.issparse(values):
        return sparse.csr_array((as_saved(values.data), values.indices, values.indptr), shape=values.shape)
    largest = np.finfo(np.float16).max
    return np.clip(values, -largest, largest).astype(np.float16).astype(np.float32)


def matrix_of(arrays: Mapping[str, np.ndarray], name: str) -> sparse.csr_array:
    """Return the matrix of `csr_arrays`. Raises `ValueError` where its arrays do not fit together."""
    data, columns, starts, shape = (arrays[f"{name}.{part}"] for part in ("data", "columns", "starts", "shape"))
    matrix = sparse.csr_array((data.astype(np.float32), columns, starts), shape=tuple(shape.tolist()))
    matrix.check_format(full_check=True)  # a file may come from elsewhere
    return matrix


def check_values(arrays: Mapping[str, np.ndarray], positive: Collection[str]) -> None:
    """Raise `ValueError` for a number that is not finite, too large, or not positive where it must be."""
    for name, values in arrays.items():
        least = np.finfo(np.float32).tiny if name in positive else -LARGEST
        if values.dtype.kind == "f" or least > 0:
            wide = values.astype(np.float64)  # float16 has no such numbers
            wrong = values[~((least <= wide) & (wide <= LARGEST))]
            if len(wrong):
                raise ValueError(f"{name} has {wrong[0]}")


def moved(
    matrix: sparse.csr_array, values: np.ndarray, columns: np.ndarray, num_items: int
) -> tuple[sparse.csr_array, np.ndarray]:
    """Return a matrix with its columns at other places, without those at -1, and the values beside its entries."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    to = columns[matrix.indices]
    kept = np.flatnonzero(to >= 0)
    kept = kept[np.lexsort((to[kept], rows[kept]))]
    cells = (rows[kept], to[kept])
    return sparse.csr_array((matrix.data[kept], cells), shape=(matrix.shape[0], num_items)), values[kept]
