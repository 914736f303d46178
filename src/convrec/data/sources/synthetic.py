"""The embedded world: a simulation of users with known tastes. Nothing in it was measured on people.

A user has a taste: genres, themes, perhaps a decade, perhaps a genre to avoid, and a part that is never put into
words. The month's popularity influences every user, some more than others. The utility of a film is linear in these;
accepted films are drawn without replacement in proportion to exp(utility), the Plackett-Luce model. The oracle ranks
by the true utility, so no list can be expected to do better.

Some users change their mind: they ask for something of other genres first. Only the last request counts.

In `SHIFT_MONTH` the audience changes, and most popular films are popular no longer. What was learned before is then
out of date, as also happens, more slowly, with real catalogs.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from convrec.data.catalog import Catalog, Item, build_catalog
from convrec.data.quarantine import Quarantine
from convrec.data.schemas import spooled
from convrec.data.sources.dialogue import Request, write_change_of_mind, write_conversation
from convrec.data.sources.source import Source

FILMS = Path(__file__).with_name("films.csv")
FIELDS = ("genres", "keywords", "director", "actors", "runtime", "country", "language", "rating", "mood", "style")
GENRE, THEME, DECADE, HIDDEN, AVOIDED = 5.0, 2.0, 3.0, 0.5, 6.0
SWAY = (1.0, 2.0)  # weight of popularity in a user's utility: uniform between these
STATED_DECADE = 0.75  # share of users who want a decade
STATED_GENRE, STATED_THEME = 0.9, 0.95  # shares of the genres and themes of a taste that a request names
HIDDEN_SIZE = 4  # dimensions of the taste that users never put into words
CHANGED = 0.25  # share of users who change their mind
FIRST_MONTH = "2022-01"
SHIFT_MONTH = 3  # the first month of the new audience, counted from 0
KEPT = 0.2  # correlation of a film's popularity before and after
DRIFT = 0.05  # monthly step of each film's popularity


@dataclass(frozen=True)
class Taste:
    """What one user wants; `popularity` is the weight of the month's popularity."""

    genres: tuple[str, ...]
    themes: tuple[str, ...]
    decade: int | None
    avoided_genre: str | None
    popularity: float
    month: int
    hidden: tuple[float, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Taste":
        raw = json.loads(text)
        tuples = {key: tuple(raw[key]) for key in ("genres", "themes", "hidden")}
        return cls(**{**raw, **tuples})


def embedded_catalog(quarantine: Quarantine | None = None) -> Catalog:
    """Return the embedded catalog of films."""
    rows = pd.read_csv(FILMS, dtype=str, keep_default_na=False).to_dict("records")
    return build_catalog(rows, FIELDS, quarantine or Quarantine())[0]


class World:
    """The films' features and popularity; every number follows from the seed, the catalog and the number of months.

    There is always a month of the new audience, so that data that end before the change have the same films as
    simulated users of after it.
    """

    def __init__(self, catalog: Catalog, seed: int, num_months: int):
        rng = np.random.default_rng([seed, 0])
        self.catalog = catalog
        self.genres = [_values(item, "genres") for item in catalog.items]
        self.themes = [_values(item, "keywords") for item in catalog.items]
        self._all_genres = set().union(*self.genres)
        self._with_genre, self._with_theme = _members(self.genres), _members(self.themes)
        self.decades = np.array([(item.year or 0) // 10 * 10 for item in catalog.items])
        size = len(catalog)
        before, fresh = rng.standard_normal((2, size))
        after = KEPT * before + np.sqrt(1 - KEPT**2) * fresh
        months = np.arange(max(num_months, SHIFT_MONTH + 1))[:, None]
        drift = np.cumsum(rng.standard_normal((len(months), size)) * DRIFT, axis=0)
        self.popularity = np.where(months < SHIFT_MONTH, before, after) + drift  # (months, C)
        self.hidden = rng.standard_normal((size, HIDDEN_SIZE)) / np.sqrt(HIDDEN_SIZE)

    def affinity(self, taste: Taste) -> np.ndarray:
        """Return how well each film fits the stated taste, without popularity. Shape: (C,)."""
        none = np.zeros(len(self.catalog))
        genres = sum((self._with_genre[genre] for genre in set(taste.genres)), none)
        themes = sum((self._with_theme[theme] for theme in set(taste.themes)), none)
        avoided = self._with_genre[taste.avoided_genre] if taste.avoided_genre else none
        fit = GENRE * genres / max(1, len(set(taste.genres))) + THEME * themes - AVOIDED * avoided
        return fit + DECADE * (self.decades == taste.decade)

    def utility(self, taste: Taste) -> np.ndarray:
        """Return the whole utility: affinity, popularity of the month, and the hidden taste. Shape: (C,)."""
        hidden = self.hidden @ np.array(taste.hidden)
        return self.affinity(taste) + taste.popularity * self.popularity[taste.month] + HIDDEN * hidden

    def draw_taste(self, rng: np.random.Generator, month: int) -> Taste:
        """Return a taste that some film of the catalog satisfies: it is drawn around a film that the user likes."""
        weights = np.exp(0.3 * self.popularity[month])
        anchor = int(rng.choice(len(self.catalog), p=weights / weights.sum()))
        genres = _sample(rng, sorted(self.genres[anchor]), int(rng.integers(1, 3)))
        themes = _sample(rng, sorted(self.themes[anchor]), int(rng.integers(1, 3)))
        others = sorted(self._all_genres - self.genres[anchor])
        return Taste(
            genres=tuple(genres),
            themes=tuple(themes),
            decade=int(self.decades[anchor]) if rng.random() < STATED_DECADE else None,
            avoided_genre=str(rng.choice(others)) if rng.random() < 0.25 else None,
            popularity=round(float(rng.uniform(*SWAY)), 4),
            month=month,
            hidden=tuple(rng.standard_normal(HIDDEN_SIZE).round(4).tolist()),
        )

    def draw_other_taste(self, rng: np.random.Generator, taste: Taste) -> Taste:
        """Return a taste of the same month that shares no genre with `taste`."""
        while True:
            other = self.draw_taste(rng, taste.month)
            if not set(other.genres) & set(taste.genres):
                return other


def _values(item: Item, name: str) -> set[str]:
    return {value for value in item.metadata[name].split(", ") if value}


def _members(values: Sequence[set[str]]) -> dict[str, np.ndarray]:
    """Return which items have each value, as 0 and 1. Shape: (C,)."""
    return {value: np.array([float(value in own) for own in values]) for value in sorted(set().union(*values))}


def _sample(rng: np.random.Generator, values: list[str], size: int) -> list[str]:
    return [str(v) for v in rng.choice(values, size=min(size, len(values)), replace=False)] if values else []


def _plackett_luce(rng: np.random.Generator, utility: np.ndarray, size: int) -> np.ndarray:
    """Return `size` indices drawn without replacement in proportion to exp(utility) (Gumbel top-k)."""
    return np.argsort(-(utility + rng.gumbel(size=len(utility))), kind="stable")[:size]


def make_request(
    rng: np.random.Generator,
    taste: Taste,
    liked: Sequence[str] = (),
    disliked: Sequence[str] = (),
    all_genres: bool = False,
) -> Request:
    """Return what a user of this taste says, with the films to name; a part of the taste may be left out."""
    return Request(
        genres=[genre for genre in taste.genres if all_genres or rng.random() < STATED_GENRE],
        themes=[theme for theme in taste.themes if rng.random() < STATED_THEME],
        liked=liked,
        disliked=disliked,
        disliked_genre=taste.avoided_genre,
        decade=taste.decade,
        wants_famous=taste.popularity > sum(SWAY) / 2,
    )


def simulate(
    catalog: Catalog, seed: int, num_conversations: int, months: list[str], list_length: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the canonical conversation rows and, for each prompt, the oracle's list and the taste.

    Each conversation is answered by one or two people: each answer, the films in it that the seeker accepted,
    is a row of its own. Films that the conversation mentions count as seen.
    """
    world = World(catalog, seed, len(months))
    rows, truths = [], []
    for number in range(num_conversations):
        rng = np.random.default_rng([seed, 1, number])
        month = int(rng.integers(len(months)))
        taste = world.draw_taste(rng, month)
        utility = world.utility(taste)
        mentioned = _plackett_luce(rng, utility, int(rng.integers(0, 4)))
        disliked = np.argsort(utility)[rng.integers(0, len(catalog) // 2, size=int(rng.random() < 0.15))]
        seen = sorted({int(i) for i in (*mentioned, *disliked)})
        liked, unliked = ([catalog.items[i].title for i in films] for films in (mentioned, disliked))
        words = np.random.default_rng([seed, 2, number])  # of its own: tastes and answers do not depend on `CHANGED`
        if words.random() < CHANGED:
            first = make_request(words, world.draw_other_taste(words, taste), all_genres=True)
            last = make_request(words, taste, liked, unliked, all_genres=True)
            messages = write_change_of_mind(words, first, last)
        else:
            messages = write_conversation(words, make_request(words, taste, liked, unliked))
        unseen = utility.copy()
        unseen[seen] = -np.inf
        num_answers = int(rng.integers(1, 3))
        accepted = _plackett_luce(rng, unseen, int(rng.integers(6, 11)) * num_answers)
        date = f"{months[month]}-{int(rng.integers(1, 29)):02d}"
        for part in np.array_split(rng.permutation(accepted), num_answers):
            rows.append(
                {
                    "conversation_id": f"sim-{number:06d}",
                    "prompt_id": f"sim-{number:06d}",
                    "user_id": "",
                    "date": date,
                    "messages": messages,
                    "groundtruth": [
                        {"title": catalog.items[i].title, "year": catalog.items[i].year} for i in sorted(part)
                    ],
                    "seen_titles": [catalog.items[i].title for i in seen],
                    "disliked_titles": [catalog.items[i].title for i in disliked],
                }
            )
        oracle = np.argsort(-unseen, kind="stable")[:list_length]
        truths.append(
            {
                "prompt_id": f"sim-{number:06d}",
                "oracle": [str(catalog.items[i]) for i in oracle],
                "taste": taste.to_json(),
            }
        )
    return pd.DataFrame(rows), pd.DataFrame(truths)


def read_synthetic(
    _folder: Path,
    quarantine: Quarantine,
    *,
    seed: int,
    num_conversations: int,
    num_months: int,
    list_length: int,
) -> Source:
    """Return the embedded catalog, simulated conversations about it, and the world behind them; reads no folder."""
    catalog = embedded_catalog(quarantine)
    months = [str(month) for month in pd.period_range(FIRST_MONTH, periods=num_months, freq="M")]
    rows, world = simulate(catalog, seed, num_conversations, months, list_length)
    return Source(catalog, spooled(rows.to_dict("records")), world)
