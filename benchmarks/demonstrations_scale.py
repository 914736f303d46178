"""Parsing, Remap, Reflect's candidates and Adjust at Reddit-v2's scale, on synthetic rows: time and peak memory.

    python -m benchmarks.demonstrations_scale                     # dense vectors of 1,024 dimensions
    python -m benchmarks.demonstrations_scale --dimensions 0      # TF-IDF of synthetic texts

Titles and texts consist of invented words, and dense vectors are random, because the cost of embedding depends on the
model, not on this code. On the first rows, Remap is also compared with a direct implementation of its formula, which
builds the large matrices. Peak memory is that of the process, reset for each stage (Linux).
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy import sparse

from benchmarks.timing import least_seconds
from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.scores import Matrix, top_items
from convrec.data.catalog import Catalog, Item
from convrec.demonstrations.adjust import fit_adjust
from convrec.demonstrations.answers import parse_answer
from convrec.demonstrations.grounding import Grounder
from convrec.demonstrations.remap import position_weights, remap

LIST_LENGTH, CANDIDATES, POSITIVES, FAULTS, SAMPLE = 20, 100, 3, 0.2, 512
LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))


def report(line: str) -> None:
    """Write a line of the result at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class RandomEmbedder:
    """Returns a random unit vector for each text."""

    def __init__(self, dimensions: int):
        self._rng, self._dimensions = np.random.default_rng(0), dimensions

    def embed_items(self, texts: Sequence[str]) -> np.ndarray:
        vectors = self._rng.standard_normal((len(texts), self._dimensions), dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def embed_conversations(self, texts: Sequence[str]) -> np.ndarray:
        return self.embed_items(texts)


class Kept:
    """An embedder with precomputed vectors, so that embedding is not timed."""

    def __init__(self, embedder: TfidfEmbedder | RandomEmbedder, items: Sequence[str], conversations: Sequence[str]):
        self._embedder = embedder
        self._items, self._conversations = embedder.embed_items(items), embedder.embed_conversations(conversations)
        self._num_items = len(items)

    def embed_items(self, texts: Sequence[str]) -> Matrix:
        return self._items if len(texts) == self._num_items else self._embedder.embed_items(texts)

    def embed_conversations(self, texts: Sequence[str]) -> Matrix:
        return self._conversations[: len(texts)]


def make_catalog(rng: np.random.Generator, size: int) -> tuple[Catalog, list[str]]:
    """Return a catalog of invented titles with metadata, and the words of its texts."""
    words = ["".join(rng.choice(LETTERS, rng.integers(3, 10))) for _ in range(4_000)]
    titles = {" ".join(rng.choice(words, rng.integers(1, 5))).title() for _ in range(size * 2)}
    items = [
        Item(title, int(rng.integers(1930, 2023)), {"plot": " ".join(rng.choice(words, 40))})
        for title in sorted(titles)[:size]
    ]
    return Catalog(items), words


def make_answers(rng: np.random.Generator, catalog: Catalog, number: int) -> list[str]:
    """Return numbered lists of titles, some of them misspelt, without a year, or outside the catalog."""
    popularity = rng.permutation(1 / np.arange(1, len(catalog) + 1))
    names = [str(item) for item in catalog.items]
    answers = []
    for picks in rng.choice(len(catalog), (number, LIST_LENGTH), p=popularity / popularity.sum()):
        faults = rng.random(LIST_LENGTH)
        lines = []
        for rank, (pick, fault) in enumerate(zip(picks.tolist(), faults.tolist(), strict=True), start=1):
            name = names[pick]
            if fault < FAULTS / 3:
                name = name[::-1][6:].strip().title() + name[-7:]
            elif fault < FAULTS * 2 / 3:
                name = name[:-7]
            elif fault < FAULTS:
                name = name[:2] + name[3:]
            lines.append(f"{rank}. {name}")
        answers.append("\n".join(lines))
    return answers


@contextmanager
def stage(name: str, rows: int) -> Iterator[None]:
    """Print the time of a stage, its conversations per second, and its peak memory."""
    Path("/proc/self/clear_refs").write_text("5")
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) / 2**20
    report(f"{name:34} {seconds:8.1f} s {rows / seconds:10,.0f} conversations/s {peak:8.2f} GiB")


def formula(
    catalog: Catalog, lists: list, embedder: Kept, grounder: Grounder, texts: list[str], conversations: Sequence[str]
) -> Callable[[], np.ndarray]:
    """Return the direct implementation of Remap's formula, with the matrix S of all teacher items."""
    teacher = position_weights(lists, grounder)
    own = [
        str(entry) if match is None else texts[match.indices[0]]
        for entry, match in zip(teacher.items, teacher.matches, strict=True)
    ]
    vectors, items = embedder.embed_items(texts), embedder.embed_items(own)
    queries = embedder.embed_conversations(conversations)
    identity = np.zeros((len(own), len(catalog)), dtype=np.float32)
    for row, match in enumerate(teacher.matches):
        for index in match.indices if match else ():
            identity[row, index] = 1 / len(match.indices)

    def scores() -> np.ndarray:
        similarity, conversation = items @ vectors.T, queries @ vectors.T
        if sparse.issparse(similarity):
            similarity, conversation = similarity.toarray(), conversation.toarray()
        whole = teacher.weights @ (similarity + identity) + conversation
        return np.argsort(-whole, axis=1, kind="stable")[:, :LIST_LENGTH]

    return scores


def main() -> None:
    """Run every stage once, and compare Remap's top lists with those of the formula."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=96_000)
    parser.add_argument("--items", type=int, default=7_404)
    parser.add_argument("--dimensions", type=int, default=1_024, help="dimensions of random dense vectors; 0: TF-IDF")
    parser.add_argument("--epochs", type=int, default=10, help="maximum epochs of Adjust")
    options = parser.parse_args()
    rows = options.conversations
    rng = np.random.default_rng(0)
    catalog, words = make_catalog(rng, options.items)
    answers = make_answers(rng, catalog, rows)
    conversations = [" ".join(rng.choice(words, 60)) for _ in range(rows)]
    texts = [item.text() for item in catalog.items]
    seen = [rng.choice(len(catalog), 3).tolist() for _ in range(rows)]
    report(f"{rows:,} conversations, {len(catalog):,} items, {options.dimensions or 'TF-IDF'} dimensions")

    with stage("embedding (not counted)", rows):
        fitted = RandomEmbedder(options.dimensions) if options.dimensions else TfidfEmbedder(texts)
        embedder = Kept(fitted, texts, conversations)
    grounder = Grounder(catalog)
    with stage("parse and remap", rows):
        lists = (parse_answer(text, catalog) for text in answers)
        remapped = remap(lists, conversations, catalog, embedder, grounder, conversation_weight=1.0)
    with stage(f"top {LIST_LENGTH} of remap", rows):
        top, _ = top_items(remapped.scores, LIST_LENGTH, seen)
        remapped.sources.of(top)
    with stage(f"top {CANDIDATES} for the judge", rows):
        top_items(remapped.scores, CANDIDATES, seen)
    popularity = rng.permutation(1 / np.arange(1, len(catalog) + 1))
    liked = rng.choice(len(catalog), (rows, POSITIVES), p=popularity / popularity.sum())
    values = np.ones(rows * POSITIVES, dtype=np.float32)
    positives = sparse.csr_array(
        (values, (np.repeat(np.arange(rows), POSITIVES), liked.ravel())), shape=remapped.scores.shape
    )
    with stage(f"adjust, {options.epochs} epochs at most", rows):
        fit = fit_adjust(
            remapped.scores,
            positives,
            np.arange(0, rows, 10),
            epochs=options.epochs,
            batch_size=512,
            seed=0,
        )
    for losses in fit.losses:
        report(f"    { {name: round(value, 4) for name, value in losses.items()} }")
    with stage(f"top {LIST_LENGTH} of adjust", rows):
        top_items(remapped.scores, LIST_LENGTH, seen, fit.weight, fit.bias)

    few = [parse_answer(text, catalog) for text in answers[:SAMPLE]]
    plain = formula(catalog, few, embedder, grounder, texts, conversations[:SAMPLE])

    def blocks() -> np.ndarray:
        small = remap(iter(few), conversations[:SAMPLE], catalog, embedder, grounder, conversation_weight=1.0)
        return top_items(small.scores, LIST_LENGTH, [[]] * SAMPLE)[0]

    ratio = least_seconds(plain, 2) / least_seconds(blocks, 2)
    report(f"{SAMPLE} conversations: the formula with its matrices takes {ratio:.1f} x as long")
    if not options.dimensions:  # random vectors differ in each call
        report(f"the same items at the same ranks: {float((plain() == blocks()).mean()):.4f}")


if __name__ == "__main__":
    main()
