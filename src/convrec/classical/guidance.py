"""Guidance: the weights of items in a constrained list, from evidence."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field
from scipy.optimize import isotonic_regression

from convrec.classical.combine import closed_items, count_positives, fit_pays, fit_weights
from convrec.classical.embedding import make_embedder
from convrec.classical.evidence import EVIDENCE, Evidence, Kind, Saved, above_next, intact
from convrec.classical.gate import Context, Gated, fit_gate
from convrec.classical.scores import Blocks
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, distinct_prompts, person_key
from convrec.generation.trie import LARGEST_LOG, NO_GUIDANCE, LogWeights

_EVIDENCE, _SETTINGS = "evidence.safetensors", "guidance.json"
_LARGEST = 1e6  # of a weight; those that are fitted are far below
_FITTED, _VALIDATED = 3000, 2000  # prompts of training and of validation that the weights are fitted to, at most
_GATE = "gate"  # beside the kinds of evidence
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
    weights: dict[Kind, Annotated[float, Field(ge=0, le=_LARGEST)]]
    embedder: _Embedder
    context: dict[str, Context]


@dataclass(frozen=True)
class Guidance:
    """Evidence and the weight of each of its kinds: log w(item) = sum of weight times score, of the best items.

    With a `context` these are the weights of a prompt in the mean, and they change from prompt to prompt (see `gate`).
    As `fit` finds them, w is in proportion to the probability that the person likes the item. All but the `kept` best
    items of a prompt count as the next one. Without weights there is no guidance.
    """

    evidence: Evidence
    weights: Mapping[str, float]
    embedder: Mapping[str, Any]  # arguments of `make_embedder`
    context: Mapping[str, Context] = field(default_factory=dict)
    live: np.ndarray | None = None  # (C,), what feedback adds to the log weights; in a service, never saved

    @classmethod
    def fit(
        cls,
        evidence: Evidence,
        train: Sequence[Row],
        validation: Sequence[Row],
        list_length: int,
        embedder: Mapping[str, Any],
    ) -> "Guidance":
        """Return the guidance whose weights suit what people liked: those of training, then those of validation.

        The evidence was made of `train`, so what a training prompt's own person said and liked is left out. To the
        log w that suits these prompts, times a factor, validation adds a constant weight of each kind where that gives
        better lists to people whom it was not fitted to. So validation chooses between what holds within training and
        what holds after it. Lists of `list_length` items keep the wishes (see `closed_items`).
        """
        catalog, prompts = evidence.catalog, distinct_prompts(train, _FITTED)
        people = {row["prompt_id"]: person_key(row) for row in prompts}
        own = [row for row in train if people.get(row["prompt_id"]) == person_key(row)]
        weights, context = fit_gate(
            evidence.terms(prompts, without_own=True),
            count_positives(own, prompts, catalog),
            closed_items(prompts, catalog, list_length),
            np.array(list(people.values())),
        )
        asked = distinct_prompts(validation, _VALIDATED)
        terms: dict[str, Blocks] = dict(evidence.terms(asked, without_own=False))
        positives, closed = count_positives(validation, asked, catalog), closed_items(asked, catalog, list_length)
        both, start = {_GATE: Gated(terms, weights, context), **terms}, {_GATE: 1.0}
        gated, asking = cls(evidence, weights, embedder, context), np.array([person_key(row) for row in asked])
        if not fit_pays(both, start, positives, closed, asking, list_length):
            return gated
        fitted = fit_weights(both, start, positives, closed, np.arange(len(asked)), list_length).values
        gated = gated.times(fitted.pop(_GATE))
        return replace(gated, weights={kind: gated.weights[kind] + added for kind, added in fitted.items()})

    def times(self, factor: float) -> "Guidance":
        """Return the guidance with log w times a factor."""
        context = {
            kind: own.model_copy(update={"slopes": {name: factor * slope for name, slope in own.slopes.items()}})
            for kind, own in self.context.items()
            if factor
        }
        return replace(self, weights={kind: factor * own for kind, own in self.weights.items()}, context=context)

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
        saved = settings.model_dump()
        make = partial(make_embedder, [], **saved["embedder"], device=device)
        evidence = Evidence.load(folder / _EVIDENCE, catalog, make, device)
        return cls(evidence, saved["weights"], saved["embedder"], settings.context)

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
        folder.mkdir(parents=True, exist_ok=True)
        context = {kind: own.model_dump() for kind, own in self.context.items()}
        settings = {"weights": dict(self.weights), "embedder": dict(self.embedder), "context": context}
        (folder / _SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
        if any(self.weights.values()):
            self.evidence.save(folder / _EVIDENCE)

    def log_weights(self, prompts: Sequence[Row], *, without_own: bool = False) -> list[LogWeights]:
        """Return the logarithm of the weight of each prompt's items; `without_own` is as in `Evidence.terms`."""
        if not (any(self.weights.values()) and prompts):
            return [NO_GUIDANCE] * len(prompts)
        return as_log_weights(self.total(prompts, without_own=without_own), self.evidence.kept, self.live)

    def total(self, prompts: Sequence[Row], *, without_own: bool = False) -> Gated:
        """Return log w of all items of the prompts, up to a constant. Shape: (B, C)."""
        kinds = list(filter(self.uses, EVIDENCE)) or EVIDENCE[:1]
        return Gated(self.evidence.terms(prompts, without_own=without_own, kinds=kinds), self.weights, self.context)

    def uses(self, kind: str) -> bool:
        """Return whether a kind of evidence has a weight for some prompts."""
        return bool(self.weights.get(kind)) or kind in self.context

    def likers(self, prompts: Sequence[Row]) -> list[dict[int, int]]:
        """Return `Neighbours.likers` of the conversations that vote; none if their votes guide no list."""
        if not self.uses("neighbours"):
            return [{} for _ in prompts]
        return self.evidence.neighbours.likers(prompts, self.evidence.number)


def load_guide(folder: Path | None, catalog: Catalog, device: str = "cpu") -> Guidance | None:
    """Return the guidance in a folder as the guide of lists, None where there is none."""
    return None if folder is None else Guidance.load(folder, catalog, device)


def as_log_weights(scores: Blocks, kept: int, bonus: np.ndarray | None = None) -> list[LogWeights]:
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
