"""Evidence for training prompts: of other people than their own, so that they are scored as new people are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convrec.classical.evidence import EVIDENCE, Evidence
from convrec.classical.scores import Blocks, Scattered
from convrec.data.conversations import Row, date_of, person_key

_PARTS = 3  # of the training people, each of which is scored by the evidence of the others


class CrossFitted(NamedTuple):
    """Evidence of all training people but a part of them, for each part: training prompts are scored as new ones are.

    The parts are by a hash of the person where all rows have a date, else by the order of the rows: people may come
    back under other names, and then soon.
    """

    others: list[Evidence]

    @classmethod
    def fit(cls, train: Sequence[Row], *arguments: Any, **options: Any) -> "CrossFitted":
        """Return the evidence of the parts' other people; the arguments are those of `Evidence.fit`."""
        keys = [person_key(row) for row in train]
        places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        is_dated = all(map(date_of, train))
        part = [key % _PARTS if is_dated else places[key] * _PARTS // len(places) for key in keys]
        others = ([row for row, own in zip(train, part, strict=True) if own != number] for number in range(_PARTS))
        return cls([Evidence.fit(rows or train, *arguments, **options) for rows in others])  # or nobody else is there

    def terms(self, prompts: Sequence[Row], kinds: Sequence[str] = EVIDENCE) -> dict[str, Blocks]:
        """Return `Evidence.terms` of each prompt by those who are not in its person's part."""
        people = [person_key(row) for row in prompts]
        part = np.array(
            [next((n for n, own in enumerate(self.others) if key not in own.likes.people), 0) for key in people]
        )
        rows = [np.flatnonzero(part == number) for number in range(len(self.others))]
        found = [own.terms([prompts[row] for row in of], kinds) for own, of in zip(self.others, rows, strict=True)]
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
