"""Quality gates of demonstrations, and figures about each step."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from convrec.data.catalog import Catalog
from convrec.data.conversations import Row
from convrec.demonstrations.grounding import KINDS
from convrec.demonstrations.remap import SOURCES, TeacherItems
from convrec.demonstrations.steps import Grounded
from convrec.project.errors import InputError

POPULARITY_BUCKETS = 20
PLACED_BY = (*SOURCES, "collaborative")


def check_demonstrations(lists: Sequence[str], rows: Sequence[Row], catalog: Catalog, size: int) -> None:
    """Raise `InputError` for a list that is not exactly `size` catalog lines, each once, none of a seen title."""
    for text, row in zip(lists, rows, strict=True):
        lines, seen = text.split("\n"), catalog.indices_of_titles(row["seen_titles"])
        indices = [catalog.index_of_line(line) for line in lines]
        if not len(lines) == len({*indices} - seen - {None}) == size:
            raise InputError(
                f"demonstration of prompt {row['prompt_id']}: it is no list of common.list_length = {size} different "
                f"unseen items of the catalog, which has {len(catalog)}; lower it, or check the data"
            )


def split_figures(name: str, split: Grounded, sources: np.ndarray, size: int) -> dict[str, dict[str, float]]:
    """Return the figures about a split's answers, titles, sources (shares of `placed_by`) and ratings.

    Those of answers are the shares in which no item, fewer than `size`, exactly so many, or more were found.
    """
    found = np.asarray(split.lengths)
    shapes = {"empty": found == 0, "fewer": (found > 0) & (found < size), "exact": found == size, "more": found > size}
    counts = np.bincount(sources.ravel(), minlength=len(PLACED_BY)).tolist()
    return {
        f"{name}_answers": {shape: float(which.mean()) for shape, which in shapes.items()},
        f"{name}_titles": match_shares(split.remapped.teacher),
        f"{name}_sources": {kind: n / max(1, sources.size) for kind, n in zip(PLACED_BY, counts, strict=True)},
        f"{name}_ratings": {"asked": split.reflected.asked, "missing": split.reflected.missing},
    }


def match_shares(teacher: TeacherItems) -> dict[str, float]:
    """Return the share of the teacher's mentions that are in the catalog, before and after matching.

    `before`: titles that are a catalog item as they stand, the definition of a hit; `after`: those matched in any way;
    then the share of each kind of match.
    """
    total = max(1, int(teacher.mentions.sum()))
    kinds: Counter[str] = Counter()
    before = 0
    for entry, match, count in zip(teacher.items, teacher.matches, teacher.mentions.tolist(), strict=True):
        kinds[match.kind if match else "none"] += count
        before += count * (entry.index is not None)
    shares: dict[str, float] = {kind: kinds[kind] / total for kind in KINDS}
    return {
        "mentions": float(teacher.mentions.sum()),
        "before": before / total,
        "after": sum(shares.values()),
        **shares,
    }


def placed_by(sources: np.ndarray, top: np.ndarray, reflected: np.ndarray) -> np.ndarray:
    """Return the step that placed each item of the lists, as an index into `PLACED_BY`.

    `sources` tells how the teacher named it. One that it did not name, and that is not among the best after Reflect,
    was placed by what others liked. Shape: all (B, N); `top` and `reflected` hold catalog indices.
    """
    is_new = ~(top[:, :, None] == reflected[:, None, :]).any(axis=2)
    return np.where(is_new & (sources == SOURCES.index("semantic")), PLACED_BY.index("collaborative"), sources)


def popularity(
    positives: sparse.csr_array, lists: dict[str, np.ndarray]
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return the distribution of lists and ground truth over the catalog, and the distance of each list to the latter.

    The items are put in buckets of equal size by how often they were liked; a row a bucket tells the share of the
    ground truth and of each kind of list that falls into it. The distance is the total variation distance (0 to 1)
    of the distributions over single items.

    Shape: positives (B, C); each of `lists` (B, N), catalog indices.
    """
    num_items = positives.shape[1]
    counts = {"ground_truth": np.asarray(positives.sum(axis=0)).ravel()}
    counts |= {name: np.bincount(top[top >= 0].ravel(), minlength=num_items) for name, top in lists.items()}
    shares = {name: count / max(1, count.sum()) for name, count in counts.items()}
    buckets = np.array_split(np.argsort(-counts["ground_truth"], kind="stable"), min(POPULARITY_BUCKETS, num_items))
    rows = [
        {"bucket": number, **{name: float(share[bucket].sum()) for name, share in shares.items()}}
        for number, bucket in enumerate(buckets, start=1)
    ]
    distances = {name: float(np.abs(shares[name] - shares["ground_truth"]).sum() / 2) for name in lists}
    return rows, distances
