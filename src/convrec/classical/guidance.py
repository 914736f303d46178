"""Guidance: the weights of items in a constrained list, from evidence."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field
from safetensors.torch import load_file, save_file
from scipy.optimize import isotonic_regression

from convrec.classical.crossfit import CrossFitted
from convrec.classical.embedding import make_embedder
from convrec.classical.evidence import EVIDENCE, SHARES, Evidence, Kind, above_next
from convrec.classical.gate import Gated, Net, fit_gate
from convrec.classical.likelihood import closed_items, count_positives
from convrec.classical.scores import Blocks, WeightedSum
from convrec.classical.stored import Saved, intact
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, distinct_prompts, person_key
from convrec.generation.trie import LARGEST_LOG, NO_GUIDANCE, LogWeights

_EVIDENCE, _SETTINGS, _NET = "evidence.safetensors", "guidance.json", "net.safetensors"
_TRAINING = "training"  # folder of the evidence of training alone, and of its parts
_LARGEST = 1e6  # of a weight; those that are fitted are far below
_FITTED, _CELLS = 4000, 200_000_000  # training prompts that the weights are fitted to, and their scores, at most
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


@dataclass(frozen=True)
class Guidance:
    """Evidence and the weight of each of its kinds: log w(item) = sum of weight times score, of the best items.

    To it comes what the `net` adds (see `gate`). As `fit` finds them, w is in proportion to the probability that the
    person likes the item. All but the `kept` best items of a prompt count as the next one. Without weights there is no
    guidance.
    """

    evidence: Evidence
    weights: Mapping[str, float]
    embedder: Mapping[str, Any]  # arguments of `make_embedder`
    net: Net | None = None
    live: np.ndarray | None = None  # (C,), what feedback adds to the log weights; in a service, never saved
    parts: CrossFitted | None = None  # the evidence for training prompts

    @classmethod
    def fit(
        cls,
        evidence: Evidence,
        parts: CrossFitted,
        train: Sequence[Row],
        list_length: int,
        embedder: Mapping[str, Any],
    ) -> "Guidance":
        """Return the guidance that suits what people of training liked, each by the evidence of other people.

        Both kinds of evidence were made of `train`. Lists of `list_length` items keep the wishes (see `closed_items`).
        """
        catalog = evidence.catalog
        prompts = list(distinct_prompts(train, min(_FITTED, max(1, _CELLS // len(catalog)))))
        weights, net = fit_gate(
            parts.terms(prompts),
            count_positives(train, prompts, catalog),
            closed_items(prompts, catalog, list_length),
            np.array([person_key(row) for row in prompts]),
        )
        return cls(evidence, weights, embedder, net, parts=parts)

    def times(self, factor: float) -> "Guidance":
        """Return the guidance with log w times a factor."""
        net = self.net.times(factor) if self.net and factor else None
        return replace(self, weights={kind: factor * own for kind, own in self.weights.items()}, net=net)

    @classmethod
    def load(
        cls, folder: Path | None, catalog: Catalog, device: str = "cpu", training: Path | None = None
    ) -> "Guidance | None":
        """Return the guidance in a folder, for this catalog; None where there is none, or none with a weight.

        `training` is the folder of the stage `evidence`: the guidance then has the evidence of training alone, with its
        parts, as prompts of training and validation need it. A sentence-transformers model that runs code of its own is
        refused, whatever the file says. Raises `InputError` for a damaged file.
        """
        if folder is None or not (folder / _SETTINGS).is_file():
            return None
        with intact(folder / _SETTINGS):
            settings = _Settings.model_validate_json((folder / _SETTINGS).read_bytes())
        if not any(settings.weights.values()):
            return None
        saved = settings.model_dump()
        make = partial(make_embedder, [], **saved["embedder"], device=device)
        own = training / _TRAINING if training else folder
        evidence = Evidence.load(own / _EVIDENCE, catalog, make, device)
        parts = CrossFitted.load(own, catalog, make, device) if training else None
        net = None
        if (folder / _NET).is_file():
            with intact(folder / _NET):
                net = Net.of_arrays(load_file(folder / _NET), len(settings.weights))
        return cls(evidence, saved["weights"], saved["embedder"], net, parts=parts)

    def with_feedback(self, shown: Outcomes) -> "Guidance":
        """Return the guidance with what people accepted of the lists that it guided, in place of what it had of that.

        The policy is a product of distributions, each with its power: the model with 1, shares of evidence with their
        weights. All of them learned what was liked before. So all get the surplus, as the logarithm of a factor.
        """
        powers = 1 + sum(self.weights.get(kind, 0.0) for kind in SHARES)
        return replace(self, live=powers * surplus(shown, len(self.evidence.catalog)))

    def save(self, folder: Path) -> None:
        """Write the guidance to a folder; without weights, nothing that people said or liked.

        The evidence for training prompts is not written: see `save_training`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        settings = {"weights": dict(self.weights), "embedder": dict(self.embedder)}
        (folder / _SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
        if any(self.weights.values()):
            self.evidence.save(folder / _EVIDENCE)
        (folder / _NET).unlink(missing_ok=True)
        if self.net:
            save_file(self.net.state_dict(), folder / _NET)

    def save_training(self, folder: Path) -> None:
        """Write the evidence for prompts of training and validation below a folder."""
        if self.parts and any(self.weights.values()):
            self.parts.save(folder / _TRAINING)
            self.evidence.save(folder / _TRAINING / _EVIDENCE)

    def __call__(self, prompts: Sequence[Row], *, training: bool = False) -> list[LogWeights]:
        """Return, as a `Guide`, the log weights of each prompt's items; of a `training` prompt, by others' evidence."""
        if not (any(self.weights.values()) and prompts):
            return [NO_GUIDANCE] * len(prompts)
        return as_log_weights(self.total(prompts, training=training), self.evidence.kept, self.live)

    def total(self, prompts: Sequence[Row], *, training: bool = False, asked_first: bool = True) -> Blocks:
        """Return log w of all items of the prompts, up to a constant; with or without `Evidence.firsts`. Shape: (B, C).

        Without them it is what is fitted, and the best by what simulated users like.
        """
        kinds, evidence = list(filter(self.uses, EVIDENCE)) or EVIDENCE[:1], self.evidence
        terms = self.parts.terms(prompts, kinds) if training and self.parts else evidence.terms(prompts, kinds)
        gated = Gated(terms, self.weights, self.net)
        return WeightedSum([gated, evidence.firsts(prompts)], [1.0, 1.0]) if asked_first else gated

    def uses(self, kind: str) -> bool:
        """Return whether a kind of evidence has a weight for some prompts."""
        return bool(self.weights.get(kind)) or (self.net is not None and kind in self.weights)

    def likers(self, prompts: Sequence[Row]) -> list[dict[int, int]]:
        """Return `Neighbours.likers` of the conversations that vote; none if their votes guide no list."""
        if not self.uses("neighbours"):
            return [{} for _ in prompts]
        return self.evidence.neighbours.likers(prompts, self.evidence.number)


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
