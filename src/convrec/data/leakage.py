"""Leakage: training rows with the same conversation, prompt, or nearly the same prompt as a held-out row."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import polars as pl

from convrec.data.conversations import transcript
from convrec.data.titles import fold

SHINGLE_WORDS = 5

_WORD = r"\w+"
_SLICE = 20_000  # texts whose words are in memory at a time
# Odd multipliers, so that the same words in another order have another hash; products wrap around.
_FACTORS = np.random.default_rng(0).integers(1, 2**62, SHINGLE_WORDS) * 2 + 1


class _ShingleSets(NamedTuple):
    """The shingles of each prompt as one array: `values` belong to prompt `owners`, `sizes` are their numbers.

    They are in the order of the values: what is looked up in that order is found many times as fast.
    """

    values: np.ndarray
    owners: np.ndarray
    sizes: np.ndarray

    def take(self, keep: np.ndarray) -> "_ShingleSets":
        """Return the same prompts with the shingles that a mask keeps."""
        owners = self.owners[keep]
        return _ShingleSets(self.values[keep], owners, np.bincount(owners, minlength=len(self.sizes)))


def _shingle_sets(texts: Sequence[str]) -> _ShingleSets:
    """Return the shingles of folded texts: the hashes (64 bits) of their sequences of `SHINGLE_WORDS` words.

    A shorter text is one shingle, all its words, so that it is like texts of the very same words only; a text without
    any word has none, and is like no other.
    """
    parts = [_shingles_of(texts[first : first + _SLICE], first) for first in range(0, len(texts), _SLICE)]
    schema = {"owner": pl.Int32, "value": pl.Int64}
    found = pl.concat([pl.DataFrame(schema=schema), *parts], rechunk=True).sort("value")
    owners, values = found["owner"].to_numpy(), found["value"].to_numpy()
    return _ShingleSets(values, owners, np.bincount(owners, minlength=len(texts)))


def _shingles_of(texts: Sequence[str], first: int) -> pl.DataFrame:
    """Return the shingles of some texts, each once, as `value`s of its `owner`; the texts are numbered from `first`."""
    # a shorter text is filled up with empty words, which no text has
    missing = pl.lit("").repeat_by((SHINGLE_WORDS - pl.col("word").list.len().cast(pl.Int64)).clip(0))
    words = (
        pl.DataFrame({"owner": np.arange(first, first + len(texts), dtype=np.int32), "word": texts})
        .with_columns(pl.col("word").str.extract_all(_WORD))
        .filter(pl.col("word").list.len() > 0)
        .with_columns(pl.col("word").list.concat(missing))
        .explode("word")
    )
    owners, hashes = words["owner"].to_numpy(), words["word"].hash(0).to_numpy().view(np.int64)
    size = max(0, len(hashes) - SHINGLE_WORDS + 1)
    grams = sum(hashes[k : k + size] * factor for k, factor in enumerate(_FACTORS))
    whole = owners[:size] == owners[SHINGLE_WORDS - 1 :]
    return pl.DataFrame({"owner": owners[:size][whole], "value": grams[whole]}).unique()


def _without_templates(train: _ShingleSets, held_out: _ShingleSets, share: float) -> tuple[_ShingleSets, _ShingleSets]:
    """Return both sides without the shingles that more than this share of the training prompts hold."""
    if share >= 1:
        return train, held_out
    values, counts = np.unique(train.values, return_counts=True)
    templates = values[counts > share * len(train.sizes)]
    return (
        train.take(np.isin(train.values, templates, invert=True)),
        held_out.take(np.isin(held_out.values, templates, invert=True)),
    )


class _Ranked(NamedTuple):
    """The shingles of each prompt that a held-out one has too, as ranks (0 is the rarest), ascending in each prompt.

    Those of prompt i are `ranks[starts[i] : starts[i + 1]]`, and its prefix the first `prefixes[i]` of them.
    """

    ranks: np.ndarray
    starts: np.ndarray
    prefixes: np.ndarray


def _places(sets: _ShingleSets, known: np.ndarray) -> tuple[_ShingleSets, np.ndarray]:
    """Return the sets without the shingles that are not `known` (sorted), and the place there of each of the others."""
    places = np.minimum(np.searchsorted(known, sets.values), len(known) - 1)
    found = known[places] == sets.values
    return sets.take(found), places[found]


def _ranked(sets: _ShingleSets, shared: _ShingleSets, ranks: np.ndarray, similarity: float) -> _Ranked:
    """Return one side's shared shingles, given with their ranks.

    Two prompts of that similarity share at least `similarity` of the shingles of each. In an order that both sides
    keep, here the shingles that no held-out prompt has first and then the rarest, they therefore have one in common
    among those that come before the last so many: the prefix.
    """
    least = np.ceil(sets.sizes * similarity - 1e-9).astype(np.int64)
    prefixes = np.where(sets.sizes > 0, sets.sizes - least + 1, 0) - (sets.sizes - shared.sizes)
    starts = np.concatenate([[0], np.cumsum(shared.sizes)])
    return _Ranked(ranks[np.lexsort((ranks, shared.owners))], starts, np.clip(prefixes, 0, shared.sizes))


def _near(train: _ShingleSets, held_out: _ShingleSets, similarity: float) -> np.ndarray:
    """Return which training prompts are at least so similar to any held-out one. Shape: (training prompts,), bool.

    Only prompts whose prefixes meet can be (Bayardo et al. 2007, "Scaling up all pairs similarity search"); of those
    the shared shingles are counted.
    """
    near = np.zeros(len(train.sizes), dtype=bool)
    known = held_out.values[np.diff(held_out.values, prepend=~held_out.values[:1]) != 0]
    if not len(known):
        return near
    (shared, places), (_, own_places) = _places(train, known), _places(held_out, known)
    counts = np.bincount(places, minlength=len(known)) + np.bincount(own_places)
    rank_of = np.empty(len(known), dtype=np.int64)
    rank_of[np.argsort(counts, kind="stable")] = np.arange(len(known))
    mine = _ranked(train, shared, rank_of[places], similarity)
    theirs = _ranked(held_out, held_out, rank_of[own_places], similarity)
    owners = np.repeat(np.arange(len(near)), mine.prefixes)
    prefix = mine.ranks[_ranges(mine.starts[:-1], mine.prefixes)]
    by_rank = np.argsort(prefix, kind="stable")
    owners, first = owners[by_rank], np.searchsorted(prefix[by_rank], np.arange(len(known) + 1))
    holds = np.zeros(len(known), dtype=bool)
    for place in np.flatnonzero(theirs.prefixes):
        start, end = theirs.starts[place : place + 2]
        own, size = theirs.ranks[start:end], held_out.sizes[place]
        found = [owners[first[rank] : first[rank + 1]] for rank in own[: theirs.prefixes[place]]]
        candidates = np.unique(np.concatenate(found))
        candidates = candidates[~near[candidates]]
        if len(candidates):
            holds[own] = True
            lengths = mine.starts[candidates + 1] - mine.starts[candidates]
            held = holds[mine.ranks[_ranges(mine.starts[candidates], lengths)]]
            both = np.add.reduceat(held, np.cumsum(lengths) - lengths, dtype=np.int64)
            holds[own] = False
            # the quotient, unlike a product, rounds as `similarity` is written
            near[candidates[both / (train.sizes[candidates] + size - both) >= similarity]] = True
    return near


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the places start, start + 1, ... of each range, one range after the other."""
    offsets = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return offsets + np.arange(len(offsets))


def _prompt_texts(rows: pd.DataFrame) -> dict[str, str]:
    """Return the folded transcript of each distinct prompt, by its id."""
    first = rows.drop_duplicates("prompt_id")
    texts = (fold(transcript(messages)) for messages in first["messages"])
    return dict(zip(first["prompt_id"], texts, strict=True))


def _text_reasons(
    texts: Sequence[str], held_out: Mapping[str, Sequence[str]], similarity: float, template_share: float
) -> dict[str, str]:
    """Return why a training text leaks, by text, of those that do: the same text before nearly the same one."""
    known, same = set(texts), dict[str, str]()
    for name, others in held_out.items():
        for text in known.intersection(others):
            same.setdefault(text, f"same prompt as a row of the {name} split")
    sets = _shingle_sets(texts)
    reasons: dict[str, str] = {}
    for name, others in held_out.items():
        near = _near(*_without_templates(sets, _shingle_sets(others), template_share), similarity)
        for place in np.flatnonzero(near).tolist():
            reasons.setdefault(texts[place], f"nearly the same prompt as a row of the {name} split")
    return {**reasons, **same}


def find_leaks(
    train: pd.DataFrame, held_out: Mapping[str, pd.DataFrame], similarity: float, template_share: float = 1.0
) -> list[str | None]:
    """Return for each training row why it leaks a held-out split, or None. `held_out` maps the splits' names to rows.

    In this order, and within a reason in the order of the splits: the row has the `conversation_id` of a held-out row;
    its transcript is the same without case and spacing; the Jaccard similarity of the two transcripts' shingles, their
    sequences of 5 words, is at least `similarity`, above 0 and at most 1. All pairs of distinct prompts are compared,
    exactly.

    Shingles that more than `template_share` of the distinct training prompts hold, an instruction before every request,
    are not counted as similarity; at 1.0 all are.
    """
    conversations: dict[str, str] = {}
    for name, rows in held_out.items():
        for key in filter(None, rows["conversation_id"].unique()):  # an empty one names no conversation
            conversations.setdefault(key, f"conversation of the {name} split")
    text_of = _prompt_texts(train)
    distinct = {name: list(dict.fromkeys(_prompt_texts(rows).values())) for name, rows in held_out.items()}
    reasons = _text_reasons(list(dict.fromkeys(text_of.values())), distinct, similarity, template_share)
    rows_of_train = zip(train["conversation_id"], train["prompt_id"], strict=True)
    return [conversations.get(key) or reasons.get(text_of[prompt]) for key, prompt in rows_of_train]
