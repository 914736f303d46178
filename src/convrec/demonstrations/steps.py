"""The steps before Adjust: the teacher's answers, Remap, Reflect and collaborative evidence, and their weighted sum."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from convrec.classical.embedding import Embedder
from convrec.classical.gate import fit_weights
from convrec.classical.guidance import Guidance
from convrec.classical.likelihood import closed_items
from convrec.classical.scores import Blocks, Subset, WeightedSum, sparse_scores, top_items
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, transcript
from convrec.data.parsing import Entry, format_list
from convrec.demonstrations.answers import parse_answer
from convrec.demonstrations.grounding import Grounder
from convrec.demonstrations.reflect import Reflected, reflect
from convrec.demonstrations.remap import Remapped, remap
from convrec.demonstrations.teachers import Teacher

logger = logging.getLogger(__name__)

JUDGED = 100  # best items of a prompt, which the teacher rates
REFLECTED = {"remap": 1.0, "ratings": 1.0}  # the weights of s_reflect


def describe_items(catalog: Catalog, teacher: Teacher) -> list[str]:
    """Return the items' texts; the teacher describes those of which the catalog has only a title."""
    texts = [item.text() for item in catalog.items]
    bare = [i for i, item in enumerate(catalog.items) if not any(item.metadata.values())]
    if bare:
        for index, text in zip(bare, teacher.describe([catalog.items[i] for i in bare]), strict=True):
            texts[index] = text
    return texts


class Grounded(NamedTuple):
    """What Remap and Reflect made of a split's answers; `closed` are the catalog indices that no list may hold."""

    prompts: Sequence[Row]
    closed: Sequence[Sequence[int]]
    answers: list[str]
    lengths: list[int]
    remapped: Remapped
    reflected: Reflected


@dataclass(frozen=True)
class Demonstrator:
    """The first three steps (teacher, Remap, Reflect), with what all splits share.

    `item_texts` are those of the catalog's items, `embedder` embeds them and the conversations.
    """

    catalog: Catalog
    teacher: Teacher
    item_texts: Sequence[str]
    embedder: Embedder
    grounder: Grounder
    list_length: int
    device: str

    def ground(self, name: str, prompts: Sequence[Row]) -> Grounded:
        """Return the teacher's answers for the prompts of a split, remapped and reflected."""
        logger.info("%s: the teacher answers %d prompts", name, len(prompts))
        answers = self.teacher.recommend(prompts, self.list_length)
        lengths: list[int] = []

        def lists() -> Iterator[list[Entry]]:  # one at a time: the entries of all answers would fill the memory
            for text in answers:
                entries = parse_answer(text, self.catalog)
                lengths.append(len(entries))
                yield entries

        remapped = remap(
            lists(),
            [transcript(row["messages"]) for row in prompts],
            self.catalog,
            self.embedder,
            self.grounder,
            item_texts=self.item_texts,
            describe=self.teacher.describe,
            device=self.device,
        )
        logger.info("%s: the judge rates the top %d", name, JUDGED)
        closed = closed_items(prompts, self.catalog, self.list_length)
        candidates, _ = top_items(remapped.scores, JUDGED, closed)
        reflected = reflect(remapped.scores, candidates, lambda rated: self.teacher.judge(prompts, rated))
        if reflected.missing:
            logger.warning("%s: %d of %d ratings are missing and count 0", name, reflected.missing, reflected.asked)
        return Grounded(prompts, closed, answers, lengths, remapped, reflected)


class Combined(NamedTuple):
    """The terms of each split's scores, and the weights of their sum."""

    terms: dict[str, dict[str, Blocks]]
    weights: Mapping[str, float]

    def scores(self, split: str) -> Blocks:
        terms = self.terms[split]
        return WeightedSum(list(terms.values()), [self.weights[name] for name in terms])


def combine(
    grounded: dict[str, Grounded],
    positives: sparse.csr_array,
    fitted: np.ndarray,
    guide: Guidance | None,
    device: str,
) -> Combined:
    """Return the scores with those of the guide, with the weights that suit the `fitted` training prompts best.

    A training prompt's own person gives no evidence about it. Without a guide, or where no term is of use, the sum is
    s_reflect.
    """
    terms: dict[str, dict[str, Blocks]] = {
        name: {"remap": split.remapped.scores, "ratings": sparse_scores(split.reflected.ratings, device)}
        for name, split in grounded.items()
    }
    if guide is None:
        return Combined(terms, REFLECTED)
    for name, split in grounded.items():
        logger.info("%s: what others liked", name)
        terms[name]["evidence"] = guide.total(split.prompts, training=name == "train")
    own = {name: Subset(scores, fitted) for name, scores in terms["train"].items()}
    weights = fit_weights(own, positives[fitted], [grounded["train"].closed[row] for row in fitted])
    return Combined(terms, weights if any(weights.values()) else {**REFLECTED, "evidence": 0.0})


def list_texts(top: np.ndarray, catalog: Catalog) -> list[str]:
    """Return the lists of these items, best first; -1 is none. Shape: top (prompts, N)."""
    return [format_list([str(catalog.items[i]) for i in row if i >= 0]) for row in top.tolist()]
