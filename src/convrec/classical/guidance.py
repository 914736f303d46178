"""Guidance: the weights of items in a constrained list, from evidence."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field
from scipy.optimize import isotonic_regression

from convrec.classical.embedding import make_embedder
from convrec.classical.evidence import EVIDENCE, Evidence, Saved, above_next, intact
from convrec.classical.scores import WeightedSum
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row
from convrec.generation.trie import LARGEST_LOG, NO_GUIDANCE, LogWeights

_EVIDENCE, _SETTINGS = "evidence.safetensors", "guidance.json"
_LARGEST = 1e6  # of a weight; those that are fitted are far below
_SHOWINGS = 2.0  # of an item to a person, which count at most


class Outcomes(NamedTuple):
    """Items that people were shown, one an entry: who, which, at which rank (from 0), and whether they accepted it.

    Shape: all (E,).
    """

    people: np.ndarray  # int64
    items: np.ndarray
    ranks: np.ndarray
    accepted: np.ndarray


def surplus(shown: Outcomes, num_items: int) -> np.ndarray:
    """Return how much more often than expected people accept each item, relative to what is expected of one showing.

    Of what a person accepted, a share is expected of each showing, in proportion to what people accept at its rank,
    which never rises from a rank to the next one. So an item gains nothing from being shown, from being shown first, or
    from being shown to people who accept much. A person counts for an item as at most two showings, by a weight that
    does not depend on what was accepted: a limit of the sum would cut off more above than below, and so make a surplus
    of every item that is shown often. That of all people is shrunk towards 0 by its variance between them (a
    random-effects model, DerSimonian and Laird, 1986). Where people agree no more than by chance, by two standard
    errors, it is 0: so it is while nothing has changed, and for fewer than four people. Shape: (C,).
    """
    if not len(shown.people):
        return np.zeros(num_items)
    people, person = np.unique(shown.people, return_inverse=True)
    num_ranks = int(shown.ranks.max()) + 1
    places, shape = person * num_ranks + shown.ranks, (len(people), num_ranks)
    times = np.bincount(places, minlength=len(people) * num_ranks).reshape(shape)
    accepted = np.bincount(places, shown.accepted, minlength=len(people) * num_ranks).reshape(shape)
    seen_by = (times > 0).sum(axis=0)
    rates = (accepted / np.maximum(times, 1)).sum(axis=0) / np.maximum(seen_by, 1)
    rates = isotonic_regression(rates, weights=np.maximum(seen_by, 1e-9), increasing=False).x
    liking = accepted.sum(axis=1) / np.maximum(times @ rates, 1e-9)
    expected = np.minimum(rates[shown.ranks] * liking[person], 1)
    pairs, pair, showings = np.unique(person * num_items + shown.items, return_inverse=True, return_counts=True)
    weight = np.minimum(1, _SHOWINGS / showings)
    own, due = (np.bincount(pair, each) * weight for each in (shown.accepted - expected, expected))
    total, square, base = (np.bincount(pairs % num_items, each, num_items) for each in (own, own**2, due))
    chance = np.sqrt(2 * (square**2).sum())  # standard error of the sum if there is no surplus
    variance = max(0.0, (total**2 - square).sum() - 2 * chance) / max((base**2).sum(), 1e-9)  # of the true surplus
    noise = base**2 * variance + square
    return total * base * variance / np.where(noise > 0, noise, 1)


class _Embedder(Saved):
    name: str
    revision: str | None = None


class _Settings(Saved):
    weights: dict[str, Annotated[float, Field(ge=0, le=_LARGEST)]]
    embedder: _Embedder


@dataclass(frozen=True)
class Guidance:
    """Evidence and the weight of each of its kinds: log w(item) = sum of weight times score, of the best items.

    All but the `kept` best items of a prompt count as the next one. Without weights there is no guidance.
    """

    evidence: Evidence
    weights: Mapping[str, float]
    embedder: Mapping[str, Any]  # arguments of `make_embedder`
    live: np.ndarray | None = None  # (C,), what feedback adds to the log weights; in a service, never saved

    @classmethod
    def load(cls, folder: Path, catalog: Catalog, device: str = "cpu") -> "Guidance | None":
        """Return the guidance in a folder, for this catalog; None where it holds none, or one without a weight.

        A sentence-transformers model that runs code of its own is refused, whatever the file says. Raises `InputError`
        for a damaged file.
        """
        if not (folder / _SETTINGS).is_file():
            return None
        with intact(folder / _SETTINGS):
            settings = _Settings.model_validate_json((folder / _SETTINGS).read_bytes())
        if not any(settings.weights.values()):
            return None
        embedder = settings.embedder.model_dump()
        make = partial(make_embedder, [], **embedder, device=device)
        return cls(Evidence.load(folder / _EVIDENCE, catalog, make, device), settings.weights, embedder)

    def __call__(self, prompts: Sequence[Row]) -> list[LogWeights]:
        """Return the log weights of prompts, as a `Guide`."""
        return self.log_weights(prompts)

    def with_feedback(self, shown: Outcomes) -> "Guidance":
        """Return the guidance with what people accepted of the lists that it guided, in place of what it had of that.

        The policy is a product of distributions, each with its power: the model with 1, shares of evidence with their
        weights. All of them learned what was liked before. So all get the surplus, as the logarithm of a factor.
        """
        powers = 1 + sum(self.weights.get(kind, 0.0) for kind in EVIDENCE if kind != "wishes")
        return replace(self, live=powers * surplus(shown, len(self.evidence.catalog)))

    def save(self, folder: Path) -> None:
        """Write the guidance to a folder; without weights, nothing that people said or liked."""
        save_settings(folder, self.weights, self.embedder)
        if any(self.weights.values()):
            self.evidence.save(folder / _EVIDENCE)

    def log_weights(self, prompts: Sequence[Row], *, without_own: bool = False) -> list[LogWeights]:
        """Return the logarithm of the weight of each prompt's items; `without_own` is as in `Evidence.terms`."""
        kinds = [kind for kind in EVIDENCE if self.weights.get(kind)]
        if not kinds or not prompts:
            return [NO_GUIDANCE] * len(prompts)
        terms = self.evidence.terms(prompts, without_own=without_own, earlier=False, kinds=kinds)
        total = WeightedSum([terms[kind] for kind in kinds], [self.weights[kind] for kind in kinds])
        return as_log_weights(total, self.evidence.kept, self.live)

    def likers(self, prompts: Sequence[Row]) -> list[dict[int, int]]:
        """Return `Neighbours.likers` of the conversations that vote; none if their votes guide no list."""
        if not self.weights.get("neighbours"):
            return [{} for _ in prompts]
        return self.evidence.neighbours.likers(prompts, self.evidence.number)


def save_settings(folder: Path, weights: Mapping[str, float], embedder: Mapping[str, Any]) -> None:
    """Write the weights and the embedder of a guidance to a folder; weights of 0 are no guidance, without evidence."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"weights": dict(weights), "embedder": dict(embedder)}
    (folder / _SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")


def load_guide(folder: Path | None, catalog: Catalog) -> Guidance | None:
    """Return the guidance in a folder as the guide of lists, None where there is none."""
    return None if folder is None else Guidance.load(folder, catalog)


def as_log_weights(scores: WeightedSum, kept: int, bonus: np.ndarray | None = None) -> list[LogWeights]:
    """Return the best items' scores of each prompt, with a bonus of the items (C,), less that of the next one.

    Where the best is more than `LARGEST_LOG`, all are lowered in proportion, so that their order stays.
    """
    found: list[LogWeights] = []
    for _, block in scores.blocks():
        values = block.cpu().numpy().astype(np.float64)
        rows = above_next(values if bonus is None else values + bonus, kept)
        for start, end in zip(rows.indptr[:-1], rows.indptr[1:], strict=True):
            logs = rows.data[start:end]
            if (best := logs.max(initial=0)) > LARGEST_LOG:
                logs = np.minimum(logs * (LARGEST_LOG / best), LARGEST_LOG)
            found.append(LogWeights(rows.indices[start:end], logs))
    return found
