"""The teacher's answers to the prompts of a split, after Remap and Reflect."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from convrec.data.catalog import Catalog
from convrec.data.conversations import transcript
from convrec.data.parsing import Entry
from convrec.demonstrations.answers import parse_answer
from convrec.demonstrations.describe import Describer
from convrec.demonstrations.grounding import Grounder
from convrec.demonstrations.prompts import seen_items
from convrec.demonstrations.reflect import Reflected, reflect
from convrec.demonstrations.remap import Remapped, remap, titles_alone
from convrec.demonstrations.teacher import Teacher
from convrec.similarity.embedding import Embedder
from convrec.similarity.scores import top_items

logger = logging.getLogger(__name__)

Row = dict[str, Any]


class Grounded(NamedTuple):
    """What the steps made of one split's answers."""

    prompts: list[Row]
    answers: list[str]
    lengths: list[int]
    remapped: Remapped
    reflected: Reflected


def describe_items(catalog: Catalog, describer: Describer | None) -> list[str]:
    """Return the items' texts; the teacher describes those of which the catalog has only a title."""
    texts = [item.text() for item in catalog.items]
    bare = [i for i, item in enumerate(catalog.items) if not any(item.metadata.values())]
    if describer is not None and bare:
        items = [catalog.items[i] for i in bare]
        described = describer.describe([str(item) for item in items], [item.title for item in items])
        for index, text in zip(bare, described, strict=True):
            texts[index] = text
    return texts


@dataclass(frozen=True)
class Demonstrator:
    """The first three of the four steps (teacher, Remap, Reflect), with what all splits share; Adjust is fitted later.

    `item_texts` are those of the catalog's items, `embedder` embeds them and the conversations. Remap weighs the
    conversation by `conversation_weight`; the teacher rates the `judged` best items, and a rating counts `gamma`.
    """

    catalog: Catalog
    teacher: Teacher
    describer: Describer | None
    item_texts: Sequence[str]
    embedder: Embedder
    grounder: Grounder
    list_length: int
    conversation_weight: float
    judged: int
    gamma: float
    device: str

    def _describe(self, entries: Sequence[Entry]) -> list[str]:
        names = titles_alone(entries)
        return names if self.describer is None else self.describer.describe(names, [e.title for e in entries])

    def ground(self, name: str, prompts: list[Row]) -> Grounded:
        """Return the teacher's answers for the prompts of a split, remapped and reflected."""
        logger.info("%s: the teacher answers %d prompts", name, len(prompts))
        answers = self.teacher.recommend(prompts, self.list_length)
        lengths: list[int] = []

        def lists() -> Iterator[list[Entry]]:  # one at a time: the entries of all answers would fill the memory
            for text in answers:
                entries = parse_answer(text, self.catalog).entries
                lengths.append(len(entries))
                yield entries

        remapped = remap(
            lists(),
            [transcript(row["messages"]) for row in prompts],
            self.catalog,
            self.embedder,
            self.grounder,
            conversation_weight=self.conversation_weight,
            item_texts=self.item_texts,
            describe=self._describe,
            device=self.device,
        )
        logger.info("%s: the judge rates the top %d", name, self.judged)
        candidates, _ = top_items(remapped.scores, self.judged, seen_items(prompts, self.catalog))
        reflected = reflect(remapped.scores, candidates, self.gamma, lambda rated: self.teacher.judge(prompts, rated))
        if reflected.missing:
            logger.warning("%s: %d of %d ratings are missing and count 0", name, reflected.missing, reflected.asked)
        return Grounded(prompts, answers, lengths, remapped, reflected)
