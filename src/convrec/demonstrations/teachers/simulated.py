"""A simulated, imperfect language model for the embedded world."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from convrec.data.catalog import Item
from convrec.data.sources.dialogue import add_typos
from convrec.data.sources.synthetic import Taste, World
from convrec.data.titles import line
from convrec.demonstrations.teachers import Row, Setting, Teacher
from convrec.project.errors import InputError

NOISE = 0.7  # standard deviation of its errors
FAULT_RATE = 0.15  # share of faulty lines
# Real films outside the embedded catalog, which a teacher that ignores the catalog would name.
OUTSIDE = (
    "The Straight Story (1999)", "Primer (2004)", "Coherence (2013)", "Paterson (2016)", "Frances Ha (2012)",
    "The Fall (2006)", "Brick (2005)", "Harvey (1950)", "Bound (1996)", "Withnail & I (1987)", "Happiness (1998)",
    "Mud (2012)", "The Guard (2011)", "Leave No Trace (2018)", "Upstream Color (2013)", "The Vast of Night (2019)",
    "Short Term 12 (2013)", "The Hit (1984)", "Time Bandits (1981)", "Local Hero (1983)", "Safe (1995)",
    "The Proposition (2005)", "Locke (2013)", "Margaret (2011)", "Trees Lounge (1996)", "The Station Agent (2003)",
)  # fmt: skip


def make(setting: Setting) -> Teacher:
    if not setting.world.is_file():
        raise InputError("demonstrations.teacher.kind = 'simulated' needs data.source 'synthetic'")
    frame = pd.read_parquet(setting.world)
    tastes = {p: Taste.from_json(text) for p, text in zip(frame["prompt_id"], frame["taste"], strict=True)}
    world = World(setting.catalog, setting.seed, setting.num_months)
    return SimulatedTeacher(world, tastes, setting.seed)


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


class SimulatedTeacher(Teacher):
    """Knows the tastes of the embedded world, but not the popularity of its films.

    It rates each film with an error of standard deviation `noise`, and makes the faults of `_with_faults`.
    """

    def __init__(
        self, world: World, tastes: dict[str, Taste], seed: int, noise: float = NOISE, fault_rate: float = FAULT_RATE
    ):
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
