"""Reflect: the teacher judges the best candidates in context (method, stage 1.3)."""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import sparse

from convrec.classical.scores import Scores

RATINGS = (-2, -1, 0, 1, 2)
GAMMA = 0.5  # weight of a rating
_MINUS = str.maketrans("−–—﹣－", "-----")
_CANDIDATE = re.compile(r"\W*(?:candidate\s*)?(\d{1,4})(?=\W)", re.IGNORECASE)
_RATING = re.compile(r"[:=|]\s*[\"'*]*([+-]?[0-2])(?:\.0+)?(?!\w|\.\d)")  # after a sign: "3. Heat (1995): +2"
_BARE = re.compile(r"^[\s\[\],;\d+-]*$")
_NEXT = re.compile(r"[\n;}]|,(?=\s*[\"']?\d+[\"']?\s*:)")
MAX_TEXT = 100_000  # characters of an answer that are read


class Reflected(NamedTuple):
    """s_reflect, the part of it that is gamma · r, and how many of the ratings that were asked for are missing."""

    scores: Scores
    ratings: sparse.csr_array
    asked: int
    missing: int


def parse_ratings(text: str, count: int) -> np.ndarray:
    """Return a judge's ratings of candidates 1 to `count`; NaN without a rating from -2 to 2.

    Read are lines of a number and a rating in any order (`3: -1`, `3. Heat (1995): +2`, `"3": 2,`, `| 3 | Heat | 1 |`),
    and `count` bare ratings. Of two ratings of a candidate the first counts.

    Shape: (count,), float32.
    """
    ratings = np.full(count, np.nan, dtype=np.float32)
    text = text[:MAX_TEXT].translate(_MINUS)
    bare = [int(value) for value in re.findall(r"[+-]?\d{1,4}", text)] if _BARE.match(text) else []
    found: dict[int, int] = {}
    if len(bare) == count and all(value in RATINGS for value in bare):
        found = dict(enumerate(bare, start=1))
    else:
        for part in _NEXT.split(text):
            if (number := _CANDIDATE.match(part)) and (rating := _RATING.search(part, number.end())):
                found.setdefault(int(number.group(1)), int(rating.group(1)))
    for candidate, value in found.items():
        if 1 <= candidate <= count:
            ratings[candidate - 1] = value
    return ratings


def reflect(scores: Scores, candidates: np.ndarray, judge: Callable[[np.ndarray], np.ndarray]) -> Reflected:
    """Return s_reflect = s_remap + gamma · r, where r rates the candidates and is 0 elsewhere.

    `judge` rates all candidates from -2 to 2; a missing rating (NaN) counts 0. Candidates of index -1 are none.

    Shape: candidates (B, N_r); ratings likewise.
    """
    ratings = np.asarray(judge(candidates), dtype=np.float32)
    real = candidates >= 0
    missing = int((np.isnan(ratings) & real).sum())
    values = np.where(real, np.nan_to_num(ratings, nan=0.0), 0.0).clip(RATINGS[0], RATINGS[-1]) * np.float32(GAMMA)
    rows, places = np.nonzero(values)
    bonus = sparse.csr_array((values[rows, places], (rows, candidates[rows, places])), shape=scores.shape)
    return Reflected(scores.plus(bonus), bonus, int(real.sum()), missing)
