"""Teachers, which write a raw list for a conversation and rate candidates (-2..2) in its context."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from convrec.data.catalog import Catalog, Item
from convrec.data.conversations import named_titles, transcript
from convrec.data.sources.dialogue import add_typos
from convrec.data.sources.synthetic import Taste, World
from convrec.data.titles import line
from convrec.demonstrations.chat import ChatClient
from convrec.demonstrations.reflect import parse_ratings
from convrec.demonstrations.teacher_prompts import Prompts
from convrec.similarity.embedding import Embedder
from convrec.similarity.scores import Matrix

logger = logging.getLogger(__name__)

Row = dict[str, Any]
ROWS_AT_ONCE = 4096  # conversations whose candidates are rated together; their prompts are in memory

# Real films outside the embedded catalog, which a teacher that ignores the catalog would name.
OUTSIDE = (
    "The Straight Story (1999)", "Primer (2004)", "Coherence (2013)", "Paterson (2016)", "Frances Ha (2012)",
    "The Fall (2006)", "Brick (2005)", "Harvey (1950)", "Bound (1996)", "Withnail & I (1987)", "Happiness (1998)",
    "Mud (2012)", "The Guard (2011)", "Leave No Trace (2018)", "Upstream Color (2013)", "The Vast of Night (2019)",
    "Short Term 12 (2013)", "The Hit (1984)", "Time Bandits (1981)", "Local Hero (1983)", "Safe (1995)",
    "The Proposition (2005)", "Locke (2013)", "Margaret (2011)", "Trees Lounge (1996)", "The Station Agent (2003)",
)  # fmt: skip


class Teacher(Protocol):
    """Writes lists and rates candidates; rows are canonical conversation rows."""

    def recommend(self, rows: Sequence[Row], list_length: int) -> list[str]:
        """Return one raw answer a row, in the teacher's own formatting; an empty one where there is none."""

    def judge(self, rows: Sequence[Row], candidates: np.ndarray) -> np.ndarray:
        """Return a rating of -2..2 for each candidate (a catalog index; -1 is none), NaN where it is missing.

        Shape: candidates (rows, N_r), as the result, float32.
        """


def _misspelt(rng: np.random.Generator, title: str) -> str:
    """Return the title with its article last, if it begins with one, or else with some words mistyped."""
    if title.startswith("The ") and rng.random() < 0.5:
        return f"{title[4:]}, The"
    return add_typos(rng, title, 0.5)


def _with_faults(rng: np.random.Generator, items: list[Item], fault_rate: float) -> str:
    """Return the list as a language model writes it: mostly clean, with some typical faults."""
    if rng.random() < fault_rate:  # too few lines
        items = items[: int(rng.integers(len(items) // 2, len(items)))]
    numbered, quoted = rng.random() < 0.5, rng.random() < 0.15
    written = []
    for number, item in enumerate(items, start=1):
        fault = rng.random()
        if fault < fault_rate * 0.4:
            text = str(rng.choice(np.array(OUTSIDE, dtype=object)))
        elif fault < fault_rate * 0.6 and item.year is not None:
            text = line(item.title, item.year + int(rng.choice([-4, -3, -1, 1, 3, 5])))
        elif fault < fault_rate * 0.8:
            text = item.title
        elif fault < fault_rate:
            text = line(_misspelt(rng, item.title), item.year)
        else:
            text = str(item)
        text = f'"{text}"' if quoted else text
        written.append(f"{number}. {text}" if numbered else text)
    if rng.random() < fault_rate:
        written.insert(0, "Here are some films that you might enjoy:")
    return "\n".join(written)


class SimulatedTeacher:
    """A simulated, imperfect LLM: it knows the tastes of the embedded world, but not the popularity of its films.

    It rates each film with an error of standard deviation `noise`, and makes the faults of `_with_faults`.
    """

    def __init__(self, world: World, tastes: dict[str, Taste], noise: float, fault_rate: float, seed: int):
        self._world, self._tastes = world, tastes
        self._noise, self._fault_rate, self._seed = noise, fault_rate, seed

    def _rng(self, prompt_id: str, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, purpose, *prompt_id.encode()])

    def _affinity(self, row: Row) -> np.ndarray:
        """Return how well each film fits; the same for all where the world does not have the user. Shape: (C,)."""
        taste = self._tastes.get(row["prompt_id"])
        return np.zeros(len(self._world.catalog)) if taste is None else self._world.affinity(taste)

    def recommend(self, rows: Sequence[Row], list_length: int) -> list[str]:
        catalog = self._world.catalog
        answers = []
        for row in rows:
            rng = self._rng(row["prompt_id"], 2)
            affinity = self._affinity(row)
            believed = affinity + self._noise * rng.standard_normal(len(catalog))
            items = catalog.first_unseen(np.argsort(-believed), row["seen_titles"], list_length)
            answers.append(_with_faults(rng, items, self._fault_rate))
        return answers

    def judge(self, rows: Sequence[Row], candidates: np.ndarray) -> np.ndarray:
        ratings = np.empty(candidates.shape, dtype=np.float32)
        for row, columns, rated in zip(rows, candidates, ratings, strict=True):
            rng = self._rng(row["prompt_id"], 3)
            affinity = self._affinity(row)
            edges = np.quantile(affinity, [0.5, 0.8, 0.92, 0.97])
            believed = affinity[columns] + self._noise * rng.standard_normal(len(columns))
            rated[:] = np.searchsorted(edges, believed, side="right") - 2
        return ratings


class SimilarityTeacher:
    """A teacher for real data without a language model: it lists the items most similar to the conversation."""

    def __init__(self, catalog: Catalog, embedder: Embedder):
        self._catalog, self._embedder = catalog, embedder
        self._vectors = embedder.embed_items([item.text() for item in catalog.items])
        vectors: Any = self._vectors
        self._transposed = vectors.T.tocsr() if sparse.issparse(vectors) else vectors.T

    def _similarities(self, rows: Sequence[Row]) -> Iterator[np.ndarray]:
        """Yield each row's mean cosine with the items mentioned, plus that with the words. Shape: (C,)."""
        if not rows:
            return
        conversations = self._embedder.embed_conversations([transcript(row["messages"]) for row in rows])
        for place, row in enumerate(rows):
            words = self._cosines(conversations[[place]])[0]
            mentioned = [i for title in named_titles(row) for i in self._catalog.indices_of_title(title)]
            yield words + self._cosines(self._vectors[mentioned]).mean(axis=0) if mentioned else words

    def _cosines(self, vectors: Matrix) -> np.ndarray:
        product = vectors @ self._transposed
        return product if isinstance(product, np.ndarray) else product.toarray()

    def recommend(self, rows: Sequence[Row], list_length: int) -> list[str]:
        answers = []
        for row, similarity in zip(rows, self._similarities(rows), strict=True):
            order = np.argsort(-similarity, kind="stable")
            best = self._catalog.first_unseen(order, row["seen_titles"], list_length)
            answers.append("\n".join(f"{number}. {item}" for number, item in enumerate(best, start=1)))
        return answers

    def judge(self, rows: Sequence[Row], candidates: np.ndarray) -> np.ndarray:
        ratings = np.empty(candidates.shape, dtype=np.float32)
        for similarity, columns, rated in zip(self._similarities(rows), candidates, ratings, strict=True):
            edges = np.quantile(similarity, [0.5, 0.8, 0.95, 0.99])
            rated[:] = np.searchsorted(edges, similarity[columns], side="right") - 2
        return ratings


class LLMTeacher:
    """A chat model behind a `ChatClient`; one call rates `candidates_per_call` candidates."""

    def __init__(self, chat: ChatClient, prompts: Prompts, catalog: Catalog, candidates_per_call: int):
        self._chat, self._prompts, self._catalog = chat, prompts, catalog
        self._candidates_per_call = candidates_per_call

    def recommend(self, rows: Sequence[Row], list_length: int) -> list[str]:
        prompts = [
            self._prompts.fill("recommend", list_length=str(list_length), conversation=transcript(row["messages"]))
            for row in rows
        ]
        return [answer or "" for answer in self._chat.ask(prompts, "recommend")]

    def judge(self, rows: Sequence[Row], candidates: np.ndarray) -> np.ndarray:
        ratings = np.full(candidates.shape, np.nan, dtype=np.float32)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            places, prompts = [], []
            for row in range(start, min(start + ROWS_AT_ONCE, len(rows))):
                conversation = transcript(rows[row]["messages"])
                real = candidates[row][candidates[row] >= 0]
                for first in range(0, len(real), self._candidates_per_call):
                    part = real[first : first + self._candidates_per_call]
                    numbered = "\n".join(f"{n}. {self._catalog.items[i]}" for n, i in enumerate(part, start=1))
                    prompts.append(self._prompts.fill("judge", conversation=conversation, candidates=numbered))
                    places.append((row, slice(first, first + len(part))))
            if len(rows) > ROWS_AT_ONCE:
                logger.info("judge: conversations %d to %d of %d", start + 1, row + 1, len(rows))
            for (row, place), answer in zip(places, self._chat.ask(prompts, "judge"), strict=True):
                ratings[row, place] = parse_ratings(answer or "", place.stop - place.start)
        return ratings
