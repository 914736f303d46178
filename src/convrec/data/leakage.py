"""Leakage: training rows with the same conversation, prompt, or nearly the same prompt as a held-out row."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd
import polars as pl
from scipy import sparse

from convrec.data.conversations import transcript
from convrec.data.row_files import Rows, first_of_each
from convrec.data.titles import fold
from convrec.data.unspaced import WORD

SHINGLE_WORDS = 5
_SLICE = 5_000  # texts whose words are in memory at a time
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


def _texts(rows: Rows) -> Iterator[str]:
    return (fold(transcript(messages)) for (messages,) in rows.values("messages"))


def _distinct(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the place of each distinct folded transcript, its hash, and the number of each row's transcript.

    That of a row is that of the first row of its prompt. Shape: (texts,), (texts,), (rows,).
    """
    prompts, first = pd.factorize(rows["prompt_id"])[0], first_of_each(rows["prompt_id"])
    hashes = np.fromiter(map(hash, _texts(rows[first])), np.int64, len(first))
    numbers, distinct = pd.factorize(hashes)
    return first[np.unique(numbers, return_index=True)[1]], distinct, numbers[prompts]


def find_leaks(
    train: Rows, held_out: Mapping[str, Rows], similarity: float, template_share: float = 1.0
) -> list[str | None]:
    """Return for each training row why it leaks a held-out split, or None. `held_out` maps the splits' names to rows.

    In this order, and within a reason in the order of the splits: the row has the `conversation_id` of a held-out row;
    its transcript is the same without case and spacing; the Jaccard similarity of the two transcripts' shingles, their
    sequences of 5 words (see `unspaced.WORD`), is at least `similarity`, above 0 and at most 1. All pairs of distinct
    prompts are compared, exactly.

    Shingles that more than `template_share` of the distinct training prompts hold, an instruction before every request,
    are not counted as similarity; at 1.0 all are. The shingles of `_SLICE` training texts are in memory at a time.
    """
    places, hashes, text_of = _distinct(train)
    starts = range(0, len(places), _SLICE)
    read = lru_cache(1)(lambda start: _shingles([*_texts(train[places[start : start + _SLICE]])]))
    templates = _templates(lambda: map(read, starts), len(places), template_share)
    same, known, near = {}, {}, {name: np.zeros(len(places), dtype=bool) for name in held_out}
    for name, rows in held_out.items():
        distinct, own, _ = _distinct(rows)
        same[name] = np.isin(hashes, own)
        known[name] = _shingles([*_texts(rows[distinct])]).join(templates, on="value", how="anti")
    for start in starts:
        shingles = read(start).join(templates, on="value", how="anti")
        for name, theirs in known.items():
            near[name][start + _near(shingles, theirs, similarity)] = True
    reasons, names = np.full(len(train), None, dtype=object), [*held_out][::-1]  # what is written last counts
    for name in names:
        reasons[near[name][text_of]] = f"nearly the same prompt as a row of the {name} split"
    for name in names:
        reasons[same[name][text_of]] = f"same prompt as a row of the {name} split"
    ids = train["conversation_id"]
    for name in names:
        is_own = (ids != "") & ids.isin(held_out[name]["conversation_id"])  # an empty one names no conversation
        reasons[is_own.to_numpy(bool)] = f"conversation of the {name} split"
    return reasons.tolist()


def _templates(slices: Callable[[], Iterable[pl.DataFrame]], number: int, share: float) -> pl.DataFrame:
    """Return the shingles, `value`s, that more than a share of so many texts hold: of these, some slice has as many."""
    found = pl.DataFrame(schema={"value": pl.Int64})
    if share < 1:
        for part in slices():
            counts = part.group_by("value").len().filter(pl.col("len") > share * part["owner"].n_unique())
            found = pl.concat([found, counts.select("value")]).unique()
    if len(found):
        counts = pl.concat([part.join(found, on="value", how="semi").group_by("value").len() for part in slices()])
        found = counts.group_by("value").sum().filter(pl.col("len") > share * number).select("value")
    return found
