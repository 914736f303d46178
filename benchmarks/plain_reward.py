"""A plain Rank-GRPO reward that works like the authors' public code: one line and one regular expression at a time.

It has the same rules (which characters are removed from a line, the pattern `Title (Year)`, the exact pair in the
catalog, ground truth by title and year within two years, the returns `log`), but is written independently.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

_STEPS = (r"^[*_\-#]+", r"[*_\-#]+$", r"^(?:[*_\-#]+\s+|\d+\s*[.)、—–-]\s+)", r"^#+\s*")
_PAIR = r"(.+?)\s+\((\d{4})\)"


def _unquoted(text: str) -> str:
    return text[1:-1] if any(text.startswith(sign) and text.endswith(sign) for sign in "\"'") else text


def _clean(text: str) -> str:
    """Return a line without list marks and emphasis; they are removed until nothing changes."""
    left, text = None, re.sub(r"\s+", " ", text.strip()).strip()
    while left != text:
        left = text
        for step in _STEPS:
            text = re.sub(step, "", text).strip()
    return _unquoted(text)


def _read(text: str) -> list[tuple[str, int]]:
    """Return the pairs of title and year that a list names; lines without a year are left out."""
    pairs = []
    for line in (line.strip() for line in re.sub(r"\n+", "\n", text).strip().split("\n")):
        match = re.match(_PAIR, _clean(line))
        if match:
            title, before = match.group(1), None
            while title != before:
                before, title = title, _clean(re.sub(r"\([^()]*\)", "", title.strip()))
            pairs.append((title, int(match.group(2))))
    return pairs


def _same(title: str) -> str:
    return re.sub(r"\s+", " ", title.strip()).casefold()


def plain_reward(
    texts: Iterable[str],
    groundtruth: Iterable[Sequence[tuple[str, int]]],
    seen_titles: Iterable[Sequence[str]],
    num_ranks: int,
    catalog: set[tuple[str, int]],
) -> list[list[float]]:
    """Return the rank returns of each list. Shape: (B, N)."""
    discounts = 1 / np.log2(np.arange(num_ranks) + 2)
    returns = []
    for text, truths, titles in zip(texts, groundtruth, seen_titles, strict=True):
        years: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for title, year in truths:
            years[_same(title)][year] += 1
        seen, hits = set(titles), np.zeros(num_ranks)
        for rank, (title, year) in enumerate(_read(text)[:num_ranks]):
            if title in seen or not ((title, year) in catalog or (title, str(year)) in catalog):
                continue
            left = years.get(_same(title), {})
            near = next((year + gap for gap in (0, 1, -1, 2, -2) if left.get(year + gap, 0)), None)
            if near is not None:
                years[_same(title)][near] -= 1
                hits[rank] = 1
        gains = hits * discounts
        returns.append((gains.sum() - np.concatenate(([0.0], gains.cumsum()[:-1]))).tolist())
    return returns
