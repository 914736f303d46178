"""Evidence for training prompts: of other people than their own, so that they are scored as new people are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from convrec.classical.evidence import EVIDENCE, Evidence
from convrec.classical.scores import Blocks, Scattered
from convrec.classical.told import Told
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, person_key
from convrec.data.row_files import chosen_rows

_PARTS = 3  # of the training people, each of which is scored by the evidence of the others


class CrossFitted(NamedTuple):
    """Evidence of all training people but a part of them, for each part: training prompts are scored as new ones are.

    The parts are by a hash of the person where all rows have a date, else by the order of the rows: people may come
    back under other names, and then soon.
    """

    others: list[Evidence]

    @classmethod
    def fit(cls, train: Sequence[Row] | Told, catalog: Catalog, *arguments: Any, **options: Any) -> "CrossFitted":
        """Return the evidence of the parts' other people; the arguments are those of `Evidence.fit`."""
        told = Told.of(train, catalog)
        places, people = pd.factorize(told.people)
        part = told.people % _PARTS if told.months.all() else places * _PARTS // len(people)
        others = (told.part(part != number) if (part != number).any() else told for number in range(_PARTS))
        return cls([Evidence.fit(own, catalog, *arguments, **options) for own in others])  # or nobody else is there

    def terms(self, prompts: Sequence[Row], kinds: Sequence[str] = EVIDENCE) -> dict[str, Blocks]:
        """Return `Evidence.terms` of each prompt by those who are not in its person's part."""
        people = np.array([person_key(row) for row in prompts], dtype=np.int64)
        part = np.array([~np.isin(people, own.likes.people) for own in self.others]).argmax(axis=0)  # the first without
        rows = [np.flatnonzero(part == number) for number in range(len(self.others))]
        found = [own.terms(chosen_rows(prompts, of), kinds) for own, of in zip(self.others, rows, strict=True)]
        return {kind: Scattered([own[kind] for own in found], rows) for kind in kinds}

    def save(self, folder: Path) -> None:
        """Write the evidence to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for number, own in enumerate(self.others):
            own.save(folder / f"{number}.safetensors")

    @classmethod
    def load(cls, folder: Path, *arguments: Any, **options: Any) -> "CrossFitted":
        """Return the evidence in a folder; the arguments are those of `Evidence.load`."""
        return cls([Evidence.load(folder / f"{number}.safetensors", *arguments, **options) for number in range(_PARTS)])
