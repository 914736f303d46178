"""Leakage: training rows with the same conversation, prompt, or nearly the same prompt as a held-out row."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import polars as pl
from scipy import sparse

from convrec.data.conversations import transcript
from convrec.data.titles import fold
from convrec.data.unspaced import WORD

SHINGLE_WORDS = 5
_SLICE = 20_000  # texts whose words are in memory at a time
_BLOCK = 64  # held-out texts that are compared with all training texts at a time
# Odd multipliers, so that the same words in another order have another hash; products wrap around.
_FACTORS = np.random.default_rng(0).integers(1, 2**62, SHINGLE_WORDS) * 2 + 1


def _shingles(texts: Sequence[str]) -> pl.DataFrame:
    """Return the shingles of folded texts, each once, as `value`s of its `owner`, the place of the text.

    A shingle is the hash (64 bits) of a sequence of `SHINGLE_WORDS` words. A shorter text is one shingle, all its
    words, so that it is like texts of the very same words only; a text without any word has none, and is like no other.
    """
    # a shorter text is filled up with empty words, which no text has
    missing = pl.lit("").repeat_by((SHINGLE_WORDS - pl.col("word").list.len().cast(pl.Int64)).clip(0))
    parts = [pl.DataFrame(schema={"owner": pl.Int32, "value": pl.Int64})]
    for first in range(0, len(texts), _SLICE):
        part = texts[first : first + _SLICE]
        words = (
            pl.DataFrame({"owner": np.arange(first, first + len(part), dtype=np.int32), "word": part})
            .with_columns(pl.col("word").str.extract_all(WORD))
            .filter(pl.col("word").list.len() > 0)
            .with_columns(pl.col("word").list.concat(missing))
            .explode("word")
        )
        owners, hashes = words["owner"].to_numpy(), words["word"].hash(0).to_numpy().view(np.int64)
        size = max(0, len(hashes) - SHINGLE_WORDS + 1)
        grams = sum(hashes[k : k + size] * factor for k, factor in enumerate(_FACTORS))
        whole = owners[:size] == owners[SHINGLE_WORDS - 1 :]
        parts.append(pl.DataFrame({"owner": owners[:size][whole], "value": grams[whole]}).unique())
    return pl.concat(parts)


def _near(train: pl.DataFrame, held_out: pl.DataFrame, similarity: float) -> np.ndarray:
    """Return the training texts, by place, that are at least so similar to any held-out one, of their shingles.

    The product of the two sparse matrices of texts by shared shingles has the number of shingles of each pair.
    """
    known = train.join(held_out, on="value", how="semi").select(pl.col("value").unique()).with_row_index("place")
    texts, sizes, matrices = [], [], []
    for table in (train, held_out):
        size, shared = np.bincount(table["owner"]), table.join(known, on="value")
        ones = np.ones(len(shared), dtype=np.int32)
        matrix = sparse.csr_array((ones, (shared["owner"], shared["place"])), shape=(len(size), len(known)))
        # a text of which fewer shingles are shared with any other is near none; the quotient, unlike a product, rounds
        # as `similarity` is written
        able = np.flatnonzero(matrix.sum(axis=1) / np.maximum(size, 1) >= similarity)
        texts.append(able)
        sizes.append(size[able])
        matrices.append(matrix[able])
    near = [np.zeros(0, dtype=np.int64)]
    for start in range(0, len(texts[1]), _BLOCK):
        both = (matrices[1][start : start + _BLOCK] @ matrices[0].T).tocoo()
        other, own = both.coords
        union = sizes[1][start + other] + sizes[0][own] - both.data
        near.append(texts[0][own[both.data / union >= similarity]])
    return np.unique(np.concatenate(near))


def _prompt_texts(rows: pd.DataFrame) -> dict[str, str]:
    """Return the folded transcript of each distinct prompt, by its id."""
    first = rows.drop_duplicates("prompt_id")
    texts = (fold(transcript(messages)) for messages in first["messages"])
    return dict(zip(first["prompt_id"], texts, strict=True))


def find_leaks(
    train: pd.DataFrame, held_out: Mapping[str, pd.DataFrame], similarity: float, template_share: float = 1.0
) -> list[str | None]:
    """Return for each training row why it leaks a held-out split, or None. `held_out` maps the splits' names to rows.

    In this order, and within a reason in the order of the splits: the row has the `conversation_id` of a held-out row;
    its transcript is the same without case and spacing; the Jaccard similarity of the two transcripts' shingles, their
    sequences of 5 words (see `unspaced.WORD`), is at least `similarity`, above 0 and at most 1. All pairs of distinct
    prompts are compared, exactly.

    Shingles that more than `template_share` of the distinct training prompts hold, an instruction before every request,
    are not counted as similarity; at 1.0 all are.
    """
    text_of = _prompt_texts(train)
    texts = list(dict.fromkeys(text_of.values()))
    others = {name: list(dict.fromkeys(_prompt_texts(rows).values())) for name, rows in held_out.items()}
    shingles = _shingles(texts)
    counts = shingles.group_by("value").len()
    templates = counts.filter(pl.col("len") > template_share * len(texts))
    shingles = shingles.join(templates, on="value", how="anti")
    conversations, same, near = dict[str, str](), dict[str, str](), dict[str, str]()
    for name, rows in held_out.items():
        for key in filter(None, rows["conversation_id"].unique()):  # an empty one names no conversation
            conversations.setdefault(key, f"conversation of the {name} split")
        for text in others[name]:
            same.setdefault(text, f"same prompt as a row of the {name} split")
        known = _shingles(others[name]).join(templates, on="value", how="anti")
        for place in _near(shingles, known, similarity).tolist():
            near.setdefault(texts[place], f"nearly the same prompt as a row of the {name} split")
    reasons = {**near, **same}
    rows_of_train = zip(train["conversation_id"], train["prompt_id"], strict=True)
    return [conversations.get(key) or reasons.get(text_of[prompt]) for key, prompt in rows_of_train]
