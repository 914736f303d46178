"""The difference between two versions of the conversations: rows that are new, gone, or moved between splits."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa

from convrec.data.conversations import SPLITS
from convrec.data.titles import fold
from convrec.errors import InputError
from convrec.text import listing
from convrec.versions.catalog_diff import tolerated_year_gap

UNDATED = "undated"
_BATCH = 20_000  # rows whose text is in memory at a time
# The content that identifies a row; ids are left out, because they can change without the content.
_CONTENT = pa.schema(
    {
        "messages": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "groundtruth": pa.list_(pa.struct({"title": pa.string(), "year": pa.int64()})),
        "seen_titles": pa.list_(pa.string()),
        "date": pa.string(),
    }
)
COMPARED = ("prompt_id", *_CONTENT.names)  # the columns that a comparison reads


@dataclass(frozen=True)
class SplitDiff:
    """The difference of one split. Pairs are before and after; `months` maps YYYY-MM, or "undated", to rows.

    A row that moved here from another split counts as added.
    """

    rows: tuple[int, int]
    prompts: tuple[int, int]
    added: int
    removed: int
    months: dict[str, tuple[int, int]]

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": _pair(self.rows),
            "prompts": _pair(self.prompts),
            "added": self.added,
            "removed": self.removed,
            "months": {month: _pair(rows) for month, rows in self.months.items()},
        }


@dataclass(frozen=True)
class ConversationsDiff:
    """The difference between two versions of the conversations; repeated rows are counted each time.

    `new` and `gone` count over all splits. A row that is in another split than before counts only in `moved`
    (rows by (from, to)). `mentions_of_added` counts ground-truth entries of new rows that name an added item.
    """

    splits: dict[str, SplitDiff]
    new: int
    gone: int
    moved: dict[tuple[str, str], int]
    mentions_of_added: int | None = None

    @property
    def is_empty(self) -> bool:
        same_prompts = all(split.prompts[0] == split.prompts[1] for split in self.splits.values())
        return same_prompts and not (self.new or self.gone or self.moved)

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON values in a stable order."""
        return {
            "new": self.new,
            "gone": self.gone,
            "moved": [{"from": old, "to": new, "rows": rows} for (old, new), rows in self.moved.items()],
            "mentions_of_added": self.mentions_of_added,
            "splits": {name: split.to_json() for name, split in self.splits.items()},
        }

    def to_text(self, limit: int = 20) -> str:
        """Return a summary line, a table of the splits, and up to `limit` months whose rows changed."""
        before, after = (sum(split.rows[side] for split in self.splits.values()) for side in (0, 1))
        if self.is_empty:
            return f"Conversations: {after:,} rows, no change"
        lines = [
            f"Conversations: {before:,} -> {after:,} rows: "
            f"{self.new:,} new, {self.gone:,} gone, {sum(self.moved.values()):,} moved to another split"
        ]
        if self.mentions_of_added is not None:
            times = "time" if self.mentions_of_added == 1 else "times"
            lines.append(f"  the ground truth of new rows names added items {self.mentions_of_added:,} {times}")
        lines += listing("moved", [f"{old} -> {new}: {rows:,}" for (old, new), rows in self.moved.items()], limit)
        lines.append(f"  {'split':<14}{'rows':>23}{'added':>11}{'removed':>11}{'prompts':>23}")
        for name, split in self.splits.items():
            rows, prompts = (f"{old:,} -> {new:,}" for old, new in (split.rows, split.prompts))
            lines.append(f"  {name:<14}{rows:>23}{split.added:>11,}{split.removed:>11,}{prompts:>23}")
        months = [
            (month, f"{month} {name}: {old:,} -> {new:,}")
            for name, split in self.splits.items()
            for month, (old, new) in split.months.items()
            if old != new
        ]
        by_month = [line for _, line in sorted(months, key=lambda pair: pair[0])]
        return "\n".join([*lines, *listing("months with more or fewer rows", by_month, limit)])


def _pair(numbers: tuple[int, int]) -> dict[str, int]:
    return {"before": numbers[0], "after": numbers[1]}


def diff_conversations(
    old: Mapping[str, pd.DataFrame], new: Mapping[str, pd.DataFrame], added: pd.DataFrame | None = None
) -> ConversationsDiff:
    """Return the difference between two versions of the splits; a missing split counts as empty.

    A row is identified by messages, ground truth, seen titles and date. If `added`, the new rows of the catalog, is
    given, mentions of these items are counted. Raises `InputError` for rows that are not canonical.
    """
    names = [name for name in SPLITS if name in old or name in new]
    names += sorted((old.keys() | new.keys()) - set(SPLITS))
    before = {name: _identities(old[name], f"old {name}") if name in old else [] for name in names}
    after = {name: _identities(new[name], f"new {name}") if name in new else [] for name in names}
    left, come = _surplus(before, after), _surplus(after, before)
    splits = {
        name: SplitDiff(
            rows=(len(before[name]), len(after[name])),
            prompts=(_num_prompts(old.get(name)), _num_prompts(new.get(name))),
            added=come[name].total(),
            removed=left[name].total(),
            months=_months(old.get(name), new.get(name)),
        )
        for name in names
    }
    moved = _take_moved(left, come)
    fresh = sum(come.values(), Counter())
    mentions = None if added is None else _mentions(new, after, fresh, added)
    return ConversationsDiff(splits, fresh.total(), sum(rows.total() for rows in left.values()), moved, mentions)


def _identities(rows: pd.DataFrame, source: str) -> list[bytes]:
    """Return a digest of each row's content."""
    digests: list[bytes] = []
    for start in range(0, len(rows), _BATCH):
        batch = rows.iloc[start : start + _BATCH]
        try:
            table = pa.Table.from_pandas(batch[_CONTENT.names], schema=_CONTENT, preserve_index=False)
        except KeyError as error:
            raise InputError(f"{source}: no such column: {error}; give canonical conversations") from None
        except (pa.ArrowException, TypeError) as error:
            raise InputError(
                f"{source}: not canonical conversations ({error}); make them with `dvc repro data`"
            ) from None
        frame = pl.DataFrame(table)
        texts = frame.select(pl.struct(pl.all()).struct.json_encode()).to_series()
        digests += [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
    return digests


def _surplus(rows: Mapping[str, list[bytes]], other: Mapping[str, list[bytes]]) -> dict[str, Counter[bytes]]:
    """Return for each split the rows that occur more often than in the other version, with their surplus."""
    return {name: Counter(rows[name]) - Counter(other[name]) for name in rows}


def _take_moved(left: dict[str, Counter[bytes]], come: dict[str, Counter[bytes]]) -> dict[tuple[str, str], int]:
    """Return how many rows moved from one split to another, and remove them from both counts."""
    moved = {}
    for source, leaving in left.items():
        for target, coming in come.items():
            both = leaving & coming
            if both:
                moved[source, target] = both.total()
                leaving -= both
                coming -= both
    return moved


def _num_prompts(rows: pd.DataFrame | None) -> int:
    return 0 if rows is None or rows.empty else int(rows["prompt_id"].nunique())


def _months(old: pd.DataFrame | None, new: pd.DataFrame | None) -> dict[str, tuple[int, int]]:
    """Return the number of rows of each month before and after; undated rows come last."""
    counts = []
    for rows in (old, new):
        months = [] if rows is None or rows.empty else rows["date"].fillna("").str.slice(0, 7).tolist()
        counts.append(Counter(month or UNDATED for month in months))
    return {month: (counts[0][month], counts[1][month]) for month in sorted(counts[0].keys() | counts[1].keys())}


def _mentions(
    new: Mapping[str, pd.DataFrame],
    identities: Mapping[str, Sequence[bytes]],
    fresh: Counter[bytes],
    added: pd.DataFrame,
) -> int:
    """Return the number of ground-truth entries of new rows that name an added item by title or alias."""
    years = defaultdict(list)
    for title, year, aliases in zip(*(added[name].tolist() for name in ("title", "year", "aliases")), strict=True):
        for name in {fold(text) for text in (title, *aliases)}:
            years[name].append(None if pd.isna(year) else int(year))
    count = 0
    for truth in _truths_of(new, identities, Counter(fresh)):
        known, year = years.get(fold(truth["title"]), []), truth["year"]
        count += any(tolerated_year_gap(y, year) is not None for y in known)
    return count


def _truths_of(
    splits: Mapping[str, pd.DataFrame], identities: Mapping[str, Sequence[bytes]], wanted: Counter[bytes]
) -> Iterator[dict[str, Any]]:
    """Yield the ground truth of the wanted rows, as many times as each is wanted."""
    for name, rows in splits.items():
        positions = []
        for position, identity in enumerate(identities[name]):
            if wanted[identity] > 0:
                wanted[identity] -= 1
                positions.append(position)
        for truths in rows["groundtruth"].iloc[positions].tolist() if positions else ():
            yield from truths
