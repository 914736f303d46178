"""Speed of rewards and of `convrec score` on lists of 20 lines with clean lines, typos, prose or unknown titles.

    python -m benchmarks.score

The catalog is the embedded world's, with new titles added up to `--items`. For each mix it prints

- the microseconds per list of the reward as called in training, including metrics, and of a plain reward that works
  like the public code of Rank-GRPO (`plain_reward`): the minimum over `--calls` calls with 128 lists, 8
  per prompt. Each call has new lists, and the two rewards alternate;
- the speed of our reward relative to that of clean lines;
- the rows per second of `convrec score`, from reading the file to the intervals, without starting the interpreter and
  loading the catalog.

The last line is a plain scorer that matches each clean line to the catalog item with the highest normalised rapidfuzz
similarity, at least 0.9. All times are CPU times of all threads, which depend least on other work on the machine.
"""

import argparse
import json
import random
import re
import string
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from convrec.data.catalog import Catalog, Item
from convrec.data.sources.synthetic import embedded_catalog
from convrec.evaluation.predictions import ScoringSettings, score_predictions
from convrec.training.rl.rewards import RankReward

RANKS, SIMILARITY = 20, 0.9
LISTS, GENERATIONS = 128, 8  # in one call of the reward
WORDS = ("night", "river", "house", "stranger", "winter", "garden", "letter", "empire", "shadow", "harbour")
UNKNOWN = ("silent", "golden", "broken", "secret", "paper", "iron", "summer", "last", "distant", "velvet", "crooked")
REMARK = ("slow", "tense", "story", "about", "two", "brothers", "who", "meet", "again", "with", "an", "ending", "that")
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
    """Return the rank returns of each list, as the authors' public code does. Shape: (B, N).

    It has the same rules (which characters are removed from a line, the pattern `Title (Year)`, the exact pair in the
    catalog, ground truth by title and year within two years, the returns `log`), but is written independently.
    """
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


def make_catalog(num_items: int) -> Catalog:
    """Return the embedded catalog, filled up to this size with invented titles."""
    rng = random.Random(0)
    items = list(embedded_catalog().items)
    while len(items) < num_items:
        words = " ".join(rng.sample(WORDS, 3)).title()
        items.append(Item(f"{words} {len(items)}", rng.randrange(1930, 2022)))
    return Catalog(items)


def unknown_line(rng: random.Random) -> str:
    """Return a well-formed line of an item that is not in the catalog."""
    return f"{' '.join(rng.sample(UNKNOWN, 3)).title()} ({rng.randrange(1930, 2022)})"


def with_typo(line: str, rng: random.Random) -> str:
    """Return a line with one character of its title replaced, inserted or removed."""
    at = rng.randrange(line.rindex(" ("))
    return line[:at] + rng.choice([*string.ascii_lowercase, ""]) + line[at + rng.randrange(2) :]


def sentence(line: str, rng: random.Random) -> str:
    """Return a sentence about an item in the style of a chat model."""
    words = " ".join(rng.sample(REMARK, 10))
    forms = (
        f"If you liked that one, you should watch {line}, {words}.",
        f"You could also try {line.rpartition(' (')[0]}, because it is {words}.",
        f"I think you would enjoy {words}.",
    )
    return rng.choice(forms)


def with_unknown(lines: list[str], rng: random.Random) -> list[str]:
    """Return the lines with three of them replaced by unknown titles."""
    places = rng.sample(range(len(lines)), 3)
    return [unknown_line(rng) if at in places else line for at, line in enumerate(lines)]


MIXES: dict[str, Callable[[list[str], random.Random], list[str]]] = {
    "clean": lambda lines, rng: lines,
    "3 of 20 unknown": with_unknown,
    "typos": lambda lines, rng: [with_typo(line, rng) for line in lines],
    "prose": lambda lines, rng: [sentence(line, rng) for line in lines],
    "all unknown": lambda lines, rng: [unknown_line(rng) for _ in lines],
    "numbered, with remarks": lambda lines, rng: [
        f"{number}. **{line}** - {' '.join(rng.sample(REMARK, 6))}" for number, line in enumerate(lines, start=1)
    ],
}


def draw_row(mix: str, catalog: Catalog, rng: random.Random) -> dict[str, Any]:
    """Return a list of 20 lines, three ground-truth items (one of them in the list), and two seen titles."""
    items = rng.sample(catalog.items, RANKS + 4)
    return {
        "response": "\n".join(MIXES[mix]([str(item) for item in items[:RANKS]], rng)),
        "groundtruth": [[item.title, item.year] for item in (*items[RANKS + 2 :], items[rng.randrange(RANKS)])],
        "seen_titles": [item.title for item in items[RANKS : RANKS + 2]],
    }


def write_predictions(path: Path, catalog: Catalog, mix: str, num_rows: int) -> None:
    """Write rows of one mix."""
    rng = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(num_rows):
            file.write(json.dumps(draw_row(mix, catalog, rng)) + "\n")


def rewards(mix: str, catalog: Catalog, num_calls: int) -> tuple[float, float]:
    """Return the microseconds per list of the plain reward and of the library's reward."""
    pairs = {(item.title, item.year) for item in catalog.items}
    reward, logged = RankReward(catalog, RANKS), {}
    seconds = []
    for call in range(num_calls):
        rng = random.Random(call)
        rows = [draw_row(mix, catalog, rng) for _ in range(LISTS)]
        asked = [rows[at - at % GENERATIONS] for at in range(LISTS)]
        truths = [[tuple(truth) for truth in row["groundtruth"]] for row in asked]
        seen, texts = [row["seen_titles"] for row in asked], [row["response"] for row in rows]
        chats = [[{"role": "assistant", "content": text}] for text in texts]
        plain = partial(plain_reward, texts, truths, seen, RANKS, pairs)
        ours = partial(reward, chats, truths, seen, log_metric=logged.__setitem__)
        seconds.append((_timed(plain), _timed(ours)))
    plain_time, own_time = (min(times) / LISTS * 1e6 for times in zip(*seconds, strict=True))
    return plain_time, own_time


def plain_scores(path: Path, catalog: Catalog, num_rows: int) -> float:
    """Return the mean NDCG@20 of the first rows, with each line matched to the most similar catalog item."""
    lines = [str(item) for item in catalog.items]
    total = 0.0
    with path.open(encoding="utf-8") as file:
        for _, text in zip(range(num_rows), file, strict=False):
            row = json.loads(text)
            truth = {f"{title} ({year})" for title, year in row["groundtruth"]}
            size, gain, rank = len(truth), 0.0, 0
            for line in row["response"].split("\n"):
                match = process.extractOne(
                    line, lines, scorer=Levenshtein.normalized_similarity, score_cutoff=SIMILARITY
                )
                if match is None or catalog.items[match[2]].title in row["seen_titles"]:
                    continue
                rank += 1
                if match[0] in truth:
                    truth.remove(match[0])
                    gain += 1 / np.log2(rank + 1)
            total += gain / sum(1 / np.log2(place + 2) for place in range(min(size, RANKS)))
    return total / num_rows


def _timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Print one line for each mix, then the scorer by edit distance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=7_404)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--sample", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    catalog = make_catalog(options.items)
    sys.stdout.write(f"{'mix':24}{'plain reward':>14}{'ours':>10}{'ratio':>8}{'of clean':>10}{'convrec score':>18}\n")
    clean = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions.jsonl"
        for mix in MIXES:
            plain, ours = rewards(mix, catalog, options.calls)
            clean = clean or ours
            write_predictions(path, catalog, mix, options.rows)
            speed = options.rows / _timed(lambda: score_predictions(path, catalog, ScoringSettings()))
            ratios = f"{plain / ours:8.1f}{clean / ours:10.2f}"
            sys.stdout.write(f"{mix:24}{plain:11,.1f} us{ours:7,.1f} us{ratios}{speed:11,.0f} rows/s\n")
        write_predictions(path, catalog, "clean", options.sample)
        slow = options.sample / _timed(lambda: plain_scores(path, catalog, options.sample))
    sys.stdout.write(f"scored by edit distance, {options.sample} clean rows: {slow:,.1f} rows/s\n")


if __name__ == "__main__":
    main()
