"""Teachers, which write a raw list for a conversation and rate candidates (-2..2) in its context.

A new teacher is a module of this package with a function `make`, and its name in `TeacherParams.kind` of
`project/config/demonstrations.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from convrec.classical.embedding import Embedder
from convrec.data.catalog import Catalog, Item
from convrec.data.conversations import Row
from convrec.data.parsing import Entry


class Teacher(ABC):
    """Writes lists and rates candidates; rows are canonical conversation rows."""

    @abstractmethod
    def recommend(self, rows: Sequence[Row], list_length: int) -> list[str]:
        """Return one raw answer a row, in the teacher's own formatting; an empty one where there is none."""

    @abstractmethod
    def judge(self, rows: Sequence[Row], candidates: np.ndarray) -> np.ndarray:
        """Return a rating of -2..2 for each candidate (a catalog index; -1 is none), NaN where it is missing.

        Shape: candidates (rows, N_r), as the result, float32.
        """

    def describe(self, items: Sequence[Item] | Sequence[Entry]) -> list[str]:
        """Return a text for each item: its name ("Title (Year)", or the title alone), and what the teacher knows."""
        return [str(item) for item in items]

    def prepare(self, embedder: Embedder) -> None:  # noqa: B027  (not abstract: most teachers need none)
        """Receive the embedder of the items' texts, after the teacher has described them and before its first list."""

    def usage(self) -> dict[str, dict[str, float]]:
        """Return what calls took: by purpose, and in `total` those of all runs; empty without calls."""
        return {}


@dataclass(frozen=True)
class Setting:
    """What teachers are made from; each takes what it needs.

    `options` are the section `demonstrations.teacher`, `conversations` a row of each training prompt.
    """

    options: Mapping[str, Any]
    catalog: Catalog
    conversations: Sequence[Row]
    domain: Mapping[str, str]
    calls: Path
    world: Path
    num_months: int
    seed: int


def make_teacher(kind: str, setting: Setting) -> Teacher:
    """Return the teacher of this kind."""
    return import_module(f"{__name__}.{kind}").make(setting)
