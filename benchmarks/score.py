"""`convrec score` on 100,000 rows of 20 clean lines, beside a plain scorer that matches by edit distance.

    python -m benchmarks.score

The catalog is the embedded world's, with new titles added up to `--items`. The plain scorer takes for each line the
catalog's nearest line by rapidfuzz's normalised similarity, from 0.9 on; it runs on the first `--sample` rows. Both are
given in rows a second of processor time (of all threads), which other work on the machine disturbs least. It is that of
the command's work, from the file to the intervals: neither the interpreter's start nor the catalog's load.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from convrec.data.catalog import Catalog, Item, build_catalog
from convrec.data.quarantine import Quarantine
from convrec.data.synthetic import embedded_rows
from convrec.evaluation.predictions import Settings, score_predictions

RANKS, SIMILARITY = 20, 0.9
WORDS = ("night", "river", "house", "stranger", "winter", "garden", "letter", "empire", "shadow", "harbour")


def make_catalog(num_items: int) -> Catalog:
    """Return the embedded catalog, with made-up titles added up to this size."""
    rng = random.Random(0)
    items = list(build_catalog(embedded_rows(), [], Quarantine())[0].items)
    while len(items) < num_items:
        words = " ".join(rng.sample(WORDS, 3)).title()
        items.append(Item(f"{words} {len(items)}", rng.randrange(1930, 2022)))
    return Catalog(items)


def write_predictions(path: Path, catalog: Catalog, num_rows: int) -> None:
    """Write rows of 20 clean lines, three ground-truth items of which one is recommended, and two seen titles."""
    rng = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(num_rows):
            items = rng.sample(catalog.items, RANKS + 4)
            truth = [items[RANKS + 2], items[RANKS + 3], items[rng.randrange(RANKS)]]
            row = {
                "response": "\n".join(str(item) for item in items[:RANKS]),
                "groundtruth": [[item.title, item.year] for item in truth],
                "seen_titles": [item.title for item in items[RANKS : RANKS + 2]],
            }
            file.write(json.dumps(row) + "\n")


def plain_scores(path: Path, catalog: Catalog, num_rows: int) -> float:
    """Return the mean NDCG@20 of the first rows, each line matched with the nearest of the catalog."""
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
    """Time both, once each, and print rows a second and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=7_404)
    parser.add_argument("--sample", type=int, default=50)
    options = parser.parse_args()
    catalog = make_catalog(options.items)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions.jsonl"
        write_predictions(path, catalog, options.rows)
        ours = options.rows / _timed(lambda: score_predictions(path, catalog, Settings()))
        plain = options.sample / _timed(lambda: plain_scores(path, catalog, options.sample))
    sys.stdout.write(
        f"{options.rows:,} rows, {len(catalog):,} items: {ours:,.0f} rows/s; by edit distance {plain:,.1f} rows/s "
        f"({options.sample} rows); {ours / plain:,.0f} times\n"
    )


if __name__ == "__main__":
    main()
