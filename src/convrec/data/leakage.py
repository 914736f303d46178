"""Leakage: training rows with the same conversation, prompt, or nearly the same prompt as a held-out row."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import polars as pl
from scipy import sparse

from convrec.data.conversations import transcript
from convrec.data.titles import fold

SHINGLE_WORDS = 5

_WORD = r"\w+"
_SLICE = 20_000  # texts whose words are in memory at a time
_BLOCK = 64  # held-out texts that are compared with all training texts at a time
# Odd multipliers, so that the same words in another order have another hash; products wrap around.
_FACTORS = np.random.default_rng(0).integers(1, 2**62, SHINGLE_WORDS) * 2 + 1


class _Shingles(NamedTuple):
    """The shingles of some texts, each once, as `value`s of their `owner`, and the number of the texts."""

    table: pl.DataFrame
    num_texts: int


def _shingles(texts: Sequence[str]) -> _Shingles:
    """Return the shingles of folded texts: the hashes (64 bits) of their sequences of `SHINGLE_WORDS` words.

    A shorter text is one shingle, all its words, so that it is like texts of the very same words only; a text without
    any word has none, and is like no other.
    """
    parts = [_shingles_of(texts[first : first + _SLICE], first) for first in range(0, len(texts), _SLICE)]
    return _Shingles(pl.concat([pl.DataFrame(schema={"owner": pl.Int32, "value": pl.Int64}), *parts]), len(texts))


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


def _near(train: _Shingles, held_out: _Shingles, similarity: float, template_share: float) -> np.ndarray:
    """Return which training texts are at least so similar to any held-out one. Shape: (training texts,), bool.

    The product of the two sparse matrices of texts by shared shingles has the number of shingles of each pair.
    """
    counts = train.table.group_by("value").len()
    templates = counts.filter(pl.col("len") > template_share * train.num_texts)
    mine, theirs = (side.table.join(templates, on="value", how="anti") for side in (train, held_out))
    known = mine.join(theirs, on="value", how="semi").select(pl.col("value").unique()).with_row_index("place")
    near = np.zeros(train.num_texts, dtype=bool)
    texts, sizes, matrices = [], [], []
    for table, number in ((mine, train.num_texts), (theirs, held_out.num_texts)):
        size, shared = np.bincount(table["owner"], minlength=number), table.join(known, on="value")
        ones = np.ones(len(shared), dtype=np.int32)
        matrix = sparse.csr_array((ones, (shared["owner"], shared["place"])), shape=(number, len(known)))
        # a text of which fewer shingles are shared with any other is near none; the quotient, unlike a product, rounds
        # as `similarity` is written
        able = np.flatnonzero(matrix.sum(axis=1) / np.maximum(size, 1) >= similarity)
        texts.append(able)
        sizes.append(size[able])
        matrices.append(matrix[able])
    for start in range(0, len(texts[1]), _BLOCK):
        both = (matrices[1][start : start + _BLOCK] @ matrices[0].T).tocoo()
        other, own = both.coords
        union = sizes[1][start + other] + sizes[0][own] - both.data
        near[texts[0][own[both.data / union >= similarity]]] = True
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
    shingles = _shingles(texts)
    reasons: dict[str, str] = {}
    for name, others in held_out.items():
        near = _near(shingles, _shingles(others), similarity, template_share)
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
