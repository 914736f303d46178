"""Teachers: who writes a raw list for a conversation, and who rates candidates (-2..2) in its context."""

import logging
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any, Protocol

import numpy as np

from convrec.data.catalog import Catalog
from convrec.data.conversations import transcript
from convrec.data.synthetic import Taste, World
from convrec.demonstrations.embedding import Embedder, dense

logger = logging.getLogger(__name__)

# Real films that the embedded catalog does not hold: what a teacher that ignores the catalog would name.
OUTSIDE = (
    "The Straight Story (1999)", "Primer (2004)", "Coherence (2013)", "Paterson (2016)", "Frances Ha (2012)",
    "The Fall (2006)", "Brick (2005)", "Harvey (1950)", "Bound (1996)", "Withnail & I (1987)", "Happiness (1998)",
    "Mud (2012)", "The Guard (2011)", "Leave No Trace (2018)", "Upstream Color (2013)", "The Vast of Night (2019)",
    "Short Term 12 (2013)", "The Hit (1984)", "Time Bandits (1981)", "Local Hero (1983)", "Safe (1995)",
    "The Proposition (2005)", "Locke (2013)", "Margaret (2011)", "Trees Lounge (1996)", "The Station Agent (2003)",
)  # fmt: skip


class Teacher(Protocol):
    """Writes lists and rates candidates; rows are canonical conversation rows."""

    def recommend(self, rows: Sequence[dict[str, Any]], list_length: int) -> list[str]:
        """Return one raw answer a row, in the teacher's own formatting."""

    def judge(self, row: dict[str, Any], columns: Sequence[int]) -> Sequence[int]:
        """Return a rating of -2..2 for each catalog index of `columns`, in the row's context."""


def _with_faults(rng: np.random.Generator, lines: list[tuple[str, int]], fault_rate: float) -> str:
    """Return the list as a language model writes it: mostly clean, sometimes wrong in the known ways."""
    if rng.random() < fault_rate:  # too few lines
        lines = lines[: int(rng.integers(len(lines) // 2, len(lines)))]
    numbered, quoted = rng.random() < 0.5, rng.random() < 0.15
    written = []
    for number, (title, year) in enumerate(lines, start=1):
        fault = rng.random()
        if fault < fault_rate * 0.5:
            text = str(rng.choice(np.array(OUTSIDE, dtype=object)))
        elif fault < fault_rate * 0.75:
            text = f"{title} ({year + int(rng.choice([-4, -3, -1, 1, 3, 5]))})"
        elif fault < fault_rate:
            text = title
        else:
            text = f"{title} ({year})"
        text = f'"{text}"' if quoted else text
        written.append(f"{number}. {text}" if numbered else text)
    if rng.random() < fault_rate:
        written.insert(0, "Here are some films that you might enjoy:")
    return "\n".join(written)


class SimulatedTeacher:
    """An imperfect LLM, played: it knows the tastes of the embedded world, but not what is popular there.

    It judges each film with an error of spread `noise`, and makes the faults of `_with_faults`.
    """

    def __init__(self, world: World, tastes: dict[str, Taste], noise: float, fault_rate: float, seed: int):
        self._world, self._tastes = world, tastes
        self._noise, self._fault_rate, self._seed = noise, fault_rate, seed

    def _rng(self, prompt_id: str, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, purpose, *prompt_id.encode()])

    def recommend(self, rows: Sequence[dict[str, Any]], list_length: int) -> list[str]:
        catalog = self._world.catalog
        answers = []
        for row in rows:
            rng = self._rng(row["prompt_id"], 2)
            affinity = self._world.affinity(self._tastes[row["prompt_id"]])
            believed = affinity + self._noise * rng.standard_normal(len(catalog))
            items = catalog.first_unseen(np.argsort(-believed), row["seen_titles"], list_length)
            lines = [(item.title, item.year) for item in items]
            answers.append(_with_faults(rng, lines, self._fault_rate))
        return answers

    def judge(self, row: dict[str, Any], columns: Sequence[int]) -> Sequence[int]:
        rng = self._rng(row["prompt_id"], 3)
        affinity = self._world.affinity(self._tastes[row["prompt_id"]])
        edges = np.quantile(affinity, [0.5, 0.8, 0.92, 0.97])
        believed = affinity[list(columns)] + self._noise * rng.standard_normal(len(columns))
        return [int(rating) - 2 for rating in np.searchsorted(edges, believed, side="right")]


class SimilarityTeacher:
    """A teacher for real data without a language model: it names what reads most like the conversation."""

    def __init__(self, catalog: Catalog, embedder: Embedder):
        self._catalog, self._embedder = catalog, embedder
        self._vectors = embedder.embed([item.text() for item in catalog.items])

    def _similarity(self, row: dict[str, Any]) -> np.ndarray:
        """Return the mean cosine with the films mentioned, plus that with the words. Shape: (C,)."""
        words = dense(self._embedder.embed([transcript(row["messages"])]) @ self._vectors.T)[0]
        mentioned = [i for title in row["seen_titles"] for i in self._catalog.indices_of_title(title)]
        if not mentioned:
            return words
        return words + dense(self._vectors[mentioned] @ self._vectors.T).mean(axis=0)

    def recommend(self, rows: Sequence[dict[str, Any]], list_length: int) -> list[str]:
        answers = []
        for row in rows:
            order = np.argsort(-self._similarity(row), kind="stable")
            best = self._catalog.first_unseen(order, row["seen_titles"], list_length)
            answers.append("\n".join(f"{number}. {item}" for number, item in enumerate(best, start=1)))
        return answers

    def judge(self, row: dict[str, Any], columns: Sequence[int]) -> Sequence[int]:
        similarity = self._similarity(row)
        edges = np.quantile(similarity, [0.5, 0.8, 0.95, 0.99])
        return [int(rating) - 2 for rating in np.searchsorted(edges, similarity[list(columns)], side="right")]


class LLMTeacher:
    """Any chat model behind an OpenAI-compatible endpoint. The key comes from OPENAI_API_KEY alone."""

    def __init__(
        self,
        catalog: Catalog,
        model: str,
        base_url: str | None,
        temperature: float,
        max_concurrency: int,
        timeout_seconds: float,
        max_retries: int,
    ):
        import openai  # noqa: PLC0415  (a second to import; only this teacher needs it)

        self._client = openai.OpenAI(base_url=base_url, timeout=timeout_seconds, max_retries=max_retries)
        self._catalog, self._model = catalog, model
        self._temperature, self._max_concurrency = temperature, max_concurrency
        prompts = files("convrec.demonstrations") / "prompts"
        self._recommend = (prompts / "recommend.txt").read_text(encoding="utf-8")
        self._judge = (prompts / "judge.txt").read_text(encoding="utf-8")

    def _ask(self, prompt: str) -> str:
        answer = self._client.chat.completions.create(
            model=self._model,
            temperature=self._temperature,
            messages=[{"role": "user", "content": prompt}],
        )
        return answer.choices[0].message.content or ""

    def recommend(self, rows: Sequence[dict[str, Any]], list_length: int) -> list[str]:
        prompts = [
            self._recommend.format(list_length=list_length, conversation=transcript(row["messages"])) for row in rows
        ]
        with ThreadPoolExecutor(self._max_concurrency) as pool:
            return list(pool.map(self._ask, prompts))

    def judge(self, row: dict[str, Any], columns: Sequence[int]) -> Sequence[int]:
        numbered = "\n".join(f"{n}. {self._catalog.items[i]}" for n, i in enumerate(columns, start=1))
        answer = self._ask(self._judge.format(conversation=transcript(row["messages"]), candidates=numbered))
        rating_of = {int(n): int(r) for n, r in re.findall(r"(\d+)\s*[.:)\-]*\s*:?\s*([+-]?[0-2])\b", answer)}
        missing = sum(n not in rating_of for n in range(1, len(columns) + 1))
        if missing:
            logger.warning("the judge left %d of %d candidates unrated; they count 0", missing, len(columns))
        return [rating_of.get(n, 0) for n in range(1, len(columns) + 1)]
