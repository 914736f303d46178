"""Which training rows leak held-out conversations: the same conversation, the same prompt, or nearly the same one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse

from convrec.data.conversations import transcript
from convrec.data.titles import fold

SHINGLE_WORDS = 5
TRAIN_BLOCK, HELD_OUT_BLOCK = 8192, 512  # prompts of one product: 32 MiB a matrix of doubles
DENSE_GAIN = 200  # a step of a dense product is about so many times as fast as one of a sparse product

_WORD = re.compile(r"\w+")


class _ShingleSets(NamedTuple):
    """The shingles of each prompt as one array: `values` belong to prompt `owners`, `sizes` are their numbers."""

    values: np.ndarray
    owners: np.ndarray
    sizes: np.ndarray

    def take(self, keep: np.ndarray) -> "_ShingleSets":
        """Return the same prompts with the shingles that a mask keeps."""
        owners = self.owners[keep]
        return _ShingleSets(self.values[keep], owners, np.bincount(owners, minlength=len(self.sizes)))


def shingles(text: str) -> set[int]:
    """Return the hashes (64 bits) of a text's sequences of `SHINGLE_WORDS` words, without case and punctuation.

    A shorter text is one shingle, all its words, so that it is like texts of the very same words only; a text without
    any word has none, and is like no other.
    """
    words = _WORD.findall(fold(text))
    if len(words) < SHINGLE_WORDS:
        return {hash(tuple(words))} if words else set()
    return {hash(gram) for gram in zip(*(words[start:] for start in range(SHINGLE_WORDS)), strict=False)}


def _shingle_sets(texts: Sequence[str]) -> _ShingleSets:
    sets = [np.fromiter(found, np.int64, len(found)) for found in map(shingles, texts)]
    sizes = np.array([len(values) for values in sets], dtype=np.int64)
    values = np.concatenate(sets) if sets else np.empty(0, np.int64)
    return _ShingleSets(values, np.repeat(np.arange(len(sets), dtype=np.int32), sizes), sizes)


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


def _matrix(sets: _ShingleSets, columns: np.ndarray, order: np.ndarray) -> sparse.csr_array:
    """Return which prompt, in this order, holds which of the shingles `columns` (sorted). Shape: (prompts, columns)."""
    row_of = np.empty(len(order), dtype=np.int32)
    row_of[order] = np.arange(len(order), dtype=np.int32)
    places = np.minimum(np.searchsorted(columns, sets.values), len(columns) - 1)
    found = columns[places] == sets.values
    at = (row_of[sets.owners[found]], places[found].astype(np.int32))
    # single precision counts exactly up to 2**24, more shingles than any prompt has
    return sparse.csr_array((np.ones(len(at[0]), np.float32), at), shape=(len(order), len(columns)))


def _blocks(size: int, block: int) -> Iterator[slice]:
    for start in range(0, size, block):
        yield slice(start, min(start + block, size))


def _near(train: _ShingleSets, held_out: _ShingleSets, similarity: float) -> np.ndarray:
    """Return which training prompts are at least so similar to any held-out one. Shape: (training prompts,), bool.

    The number of shared shingles of all pairs is a matrix product, made block by block. What many prompts hold, such as
    an instruction, would make a sparse product slow: those columns are multiplied as a dense matrix.
    """
    near = np.zeros(len(train.sizes), dtype=bool)
    columns = np.unique(held_out.values)
    if not len(columns) or not len(train.values):
        return near
    # from the shortest to the longest: a block whose sizes differ too much from the other's holds no near pair
    order, held_out_order = (np.argsort(side.sizes, kind="stable") for side in (train, held_out))
    sizes, held_out_sizes = train.sizes[order], held_out.sizes[held_out_order]
    rows, held_out_rows = _matrix(train, columns, order), _matrix(held_out, columns, held_out_order)
    pairs = np.bincount(rows.indices, minlength=len(columns)) * np.bincount(held_out_rows.indices)
    frequent = pairs * DENSE_GAIN > len(sizes) * len(held_out_sizes)
    for mine in _blocks(len(sizes), TRAIN_BLOCK):
        dense, rare = rows[mine][:, frequent].toarray().T, rows[mine][:, ~frequent].T.tocsr()
        for theirs in _blocks(len(held_out_sizes), HELD_OUT_BLOCK):
            short, long = held_out_sizes[theirs][[0, -1]]
            if sizes[mine.stop - 1] < similarity * short or long < similarity * sizes[mine.start]:
                continue
            block = held_out_rows[theirs]
            shared = block[:, frequent].toarray() @ dense + (block[:, ~frequent] @ rare).toarray()
            union = np.maximum(np.add.outer(held_out_sizes[theirs], sizes[mine]) - shared, 1)
            # the quotient, unlike a product, rounds as `similarity` is written; without shingles it is 0
            near[order[mine]] |= (shared / union >= similarity).any(axis=0)
    return near


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
    its transcript is the same without case and spacing; the Jaccard similarity of the two transcripts' shingles (see
    `shingles`) is at least `similarity`, above 0 and at most 1. All pairs of distinct prompts are compared, exactly.

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
