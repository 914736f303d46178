"""Replays logged conversations through another model: what would users have accepted in its lists?"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from convrec.data.catalog import Catalog
from convrec.data.mentions import Mentions
from convrec.errors import InputError
from convrec.feedback.store import FeedbackStore
from convrec.generation.constraint import ListRequest
from convrec.generation.lists import EngineOptions, ListSettings, model_lists
from convrec.monitoring.estimates import Replay
from convrec.monitoring.off_policy import Slots, Target, answer_terms, effective_size, estimate
from convrec.monitoring.reward_model import Shown, predict_acceptance
from convrec.similarity.embedding import Embedder


class Answered(NamedTuple):
    """One logged answer of a single list: its person, messages and filters (item ids), and its items from rank 1."""

    person: str
    is_explored: bool
    messages: list[dict[str, str]]
    item_ids: list[str]
    propensities: list[float]
    accepted: list[bool]
    denied: Sequence[str] = ()
    allowed: Sequence[str] | None = None


def read_logged(store: FeedbackStore, version: str, since: datetime, until: datetime) -> list[Answered]:
    """Return the answers of a version whose conversation is stored, from `since` to before `until`.

    Only answers that show a single list of this version alone are returned, because their propensities are known. An
    answer without a user is a person of its own. Raises `InputError` if there are none; it says what is missing.
    """
    answers = store.answers(since, until)
    outcomes = store.outcomes(since, until).sort("answer_id", "rank")
    is_alone = (pl.col("version") == version).all() & (pl.col("list").n_unique() == 1)
    lists = outcomes.group_by("answer_id", maintain_order=True).agg("item_id", "propensity", "accepted", own=is_alone)
    lists = lists.filter("own")
    found = answers.join(lists, on="answer_id", maintain_order="left")
    stored = found.filter(pl.col("messages").is_not_null())
    if not len(stored):
        when = f"from {since:%Y-%m-%d} to {until:%Y-%m-%d}"
        if not len(answers):
            raise InputError(f"replay: no answers were recorded {when}; give another --window")
        if not len(found):
            raise InputError(
                f"replay: none of the {len(answers):,} answers {when} shows a list of version {version} alone; give "
                "another --window"
            )
        raise InputError(
            f"replay: the conversations of the {len(found):,} answers of version {version} {when} are not stored; "
            "serve with --save-conversations"
        )
    return [
        Answered(
            row["user_id"] or row["answer_id"],
            row["is_explored"],
            json.loads(row["messages"]),
            row["item_id"],
            row["propensity"],
            row["accepted"],
            tuple(json.loads(row["denied"] or "[]")),
            json.loads(row["allowed"] or "null"),
        )
        for row in stored.iter_rows(named=True)
    ]


def challenger_lists(
    logged: Sequence[Answered], model: Path, catalog: Catalog, settings: ListSettings, options: EngineOptions
) -> list[list[str]]:
    """Return the ids of the items that a model lists for the logged conversations, at most as many as were shown.

    As in the service, the lists, best first, are written under the catalog constraint: without what the user denied,
    within what the user allowed, and without what the conversation names unless the settings allow it.
    """
    finder, requests = Mentions(catalog), []
    for answer in logged:
        banned = _indices(catalog, answer.denied)
        if not settings.recommend_seen:
            words = [message["content"] for message in answer.messages if message["role"] != "system"]
            banned |= catalog.indices_of_titles(finder.titles(words))
        allowed = None if answer.allowed is None else _indices(catalog, answer.allowed)
        left = len((set(range(len(catalog))) if allowed is None else allowed) - banned)
        length = min(left, len(answer.item_ids), settings.list_length)
        requests.append(ListRequest(length, banned, allowed))
    asked = [place for place, request in enumerate(requests) if request.length]
    rows = [{"messages": logged[place].messages} for place in asked]
    texts = model_lists(model, rows, settings, options, catalog, requests=[requests[place] for place in asked]).texts
    lists: list[list[str]] = [[] for _ in logged]
    for place, text in zip(asked, texts, strict=True):
        indices = catalog.indices_of_lines(text.split("\n"))
        lists[place] = [catalog.items[i].id for i in indices if i is not None]
    return lists


def _indices(catalog: Catalog, item_ids: Sequence[str]) -> set[int]:
    """Return the places of the items that the catalog still has."""
    found = map(catalog.index_of_id, item_ids)
    return {index for index in found if index is not None}


def has_support(answer: Answered, items: Sequence[str]) -> list[bool]:
    """Return for each rank of a list whether the service could have shown its item there.

    If any propensity is below 1, the service showed this list's items in a random order with some probability, so each
    of them could be at each rank. Otherwise the service shows one order.
    """
    is_explored = min(answer.propensities) < 1
    at_rank = dict(enumerate(answer.item_ids))
    shown = set(answer.item_ids)
    return [item in shown if is_explored else at_rank.get(rank) == item for rank, item in enumerate(items)]


def replay(
    logged: Sequence[Answered],
    lists: Sequence[Sequence[str]],
    catalog: Catalog,
    embedder: Callable[[list[str]], Embedder],
    samples: int,
    seed: int,
) -> Replay:
    """Return the estimates for the challenger's lists, beside what was accepted of the champion's.

    Raises `InputError` if all answers are explored: then the champion's own lists were never shown.
    """
    if all(answer.is_explored for answer in logged):
        raise InputError("replay: all answers are explored, so none shows the champion's own list; lower --explore")
    numbers = _numbers(logged, lists)
    sides = [_shown([answer.item_ids for answer in logged], numbers), _shown(lists, numbers)]
    cosines = _cosines(logged, sides, numbers, catalog, embedder)
    ours, theirs = (side._replace(cosine=cosine) for side, cosine in zip(sides, cosines, strict=True))
    reward, propensity = (
        np.array([value for answer in logged for value in getattr(answer, name)], dtype=float)
        for name in ("accepted", "propensities")
    )
    persons = [answer.person for answer in logged]
    predicted, direct = predict_acceptance(ours, reward, theirs, persons, len(numbers), seed)
    slots = Slots(ours.answer, reward, propensity, predicted)
    places = set(zip(theirs.answer.tolist(), theirs.rank.tolist(), theirs.item.tolist(), strict=True))
    hits = [slot in places for slot in zip(ours.answer.tolist(), ours.rank.tolist(), ours.item.tolist(), strict=True)]
    length, total = (np.bincount(theirs.answer, weights=some, minlength=len(logged)) for some in (None, direct))
    terms = answer_terms(slots, Target(np.array(hits, dtype=float), length, total))
    accepted = np.bincount(ours.answer, weights=reward, minlength=len(logged))
    is_explored = np.array([answer.is_explored for answer in logged])
    found = estimate(terms, accepted, is_explored, persons, samples, seed)
    support = [held for answer, items in zip(logged, lists, strict=True) for held in has_support(answer, items)]
    return Replay(
        found.values,
        found.served,
        found.differences,
        effective_size(terms.weight),
        1 - float(np.mean(support)) if support else 1.0,
        len(logged),
        len(set(persons)),
    )


def _numbers(logged: Sequence[Answered], lists: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return a number for each item that was shown or is listed; the catalog may have lost some of them."""
    ids = [item for answer in logged for item in answer.item_ids] + [item for items in lists for item in items]
    return {item: number for number, item in enumerate(dict.fromkeys(ids))}


def _shown(lists: Sequence[Sequence[str]], numbers: dict[str, int]) -> Shown:
    answer = np.repeat(np.arange(len(lists)), [len(items) for items in lists])
    item = np.array([numbers[item] for items in lists for item in items], dtype=np.int64)
    rank = np.array([rank for items in lists for rank in range(1, len(items) + 1)], dtype=np.int64)
    return Shown(answer, item, rank, np.zeros(len(item)))


def _cosines(
    logged: Sequence[Answered],
    sides: Sequence[Shown],
    numbers: dict[str, int],
    catalog: Catalog,
    embedder: Callable[[list[str]], Embedder],
) -> list[np.ndarray]:
    """Return the cosine of conversation and item for each entry of `sides`; 0 for items that the catalog has lost."""
    indices = [catalog.index_of_id(item) for item in numbers]
    texts = ["" if index is None else catalog.items[index].text() for index in indices]
    model = embedder(texts)
    items = model.embed_items(texts)
    said = model.embed_conversations(["\n".join(m["content"] for m in answer.messages) for answer in logged])
    products = []
    for side in sides:
        one, other = said[side.answer], items[side.item]
        product = one * other if isinstance(one, np.ndarray) else one.multiply(other)
        products.append(np.asarray(product.sum(axis=1), dtype=float).ravel())
    return products
