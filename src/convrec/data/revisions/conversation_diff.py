"""The difference between two versions of the conversations: rows that are new, gone, or moved between splits."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa

from convrec.data.conversations import SPLITS
from convrec.data.schemas import CONVERSATION_TYPES
from convrec.project.errors import InputError
from convrec.project.text import listing

UNDATED = "undated"
# The content that identifies a row; ids are left out, because they can change without the content.
_CONTENT = pa.schema([CONVERSATION_TYPES.field(name) for name in ("messages", "groundtruth", "seen_titles", "date")])
COMPARED = ("prompt_id", *_CONTENT.names)  # the columns that a comparison reads


@dataclass(frozen=True)
class Counts:
    """A number before and after."""

    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.before:,} -> {self.after:,}"


@dataclass(frozen=True)
class SplitDiff:
    """The difference of one split; `months` maps YYYY-MM, or "undated", to rows.

    A row that moved here from another split counts as added.
    """

    rows: Counts
    prompts: Counts
    added: int
    removed: int
    months: dict[str, Counts]


@dataclass(frozen=True)
class ConversationsDiff:
    """The difference between two versions of the conversations; repeated rows are counted each time.

    `new` and `gone` count over all splits. A row that is in another split than before counts only in `moved`, which has
    the number of `rows` of each pair of splits, `from` and `to`.
    """

    new: int
    gone: int
    moved: list[dict[str, Any]]
    splits: dict[str, SplitDiff]

    @property
    def is_empty(self) -> bool:
        same_prompts = all(split.prompts.before == split.prompts.after for split in self.splits.values())
        return same_prompts and not (self.new or self.gone or self.moved)

    def to_text(self, limit: int = 20) -> str:
        """Return a summary line, a table of the splits, and up to `limit` months whose rows changed."""
        before = sum(split.rows.before for split in self.splits.values())
        after = sum(split.rows.after for split in self.splits.values())
        if self.is_empty:
            return f"Conversations: {after:,} rows, no change"
        lines = [
            f"Conversations: {Counts(before, after)} rows: {self.new:,} new, {self.gone:,} gone, "
            f"{sum(moved['rows'] for moved in self.moved):,} moved to another split"
        ]
        lines += listing(
            "moved", [f"{moved['from']} -> {moved['to']}: {moved['rows']:,}" for moved in self.moved], limit
        )
        lines.append(f"  {'split':<14}{'rows':>23}{'added':>11}{'removed':>11}{'prompts':>23}")
        months = []
        for name, split in self.splits.items():
            lines.append(f"  {name:<14}{split.rows!s:>23}{split.added:>11,}{split.removed:>11,}{split.prompts!s:>23}")
            months += [(month, name, rows) for month, rows in split.months.items() if rows.before != rows.after]
        months.sort(key=lambda row: row[0])
        texts = [f"{month} {name}: {rows}" for month, name, rows in months]
        return "\n".join([*lines, *listing("months with more or fewer rows", texts, limit)])


def diff_conversations(old: Mapping[str, pd.DataFrame], new: Mapping[str, pd.DataFrame]) -> ConversationsDiff:
    """Return the difference between two versions of the splits; a missing split counts as empty.

    A row is identified by messages, ground truth, seen titles and date. Raises `InputError` for rows that are not
    canonical.
    """
    names = [name for name in SPLITS if name in old or name in new]
    names += sorted((old.keys() | new.keys()) - set(SPLITS))
    empty = pd.DataFrame(columns=list(COMPARED), dtype=object)
    pairs = {name: (old.get(name, empty), new.get(name, empty)) for name in names}
    before = {name: _digests(rows, f"old {name}") for name, (rows, _) in pairs.items()}
    after = {name: _digests(rows, f"new {name}") for name, (_, rows) in pairs.items()}
    left = {name: before[name] - after[name] for name in names}
    come = {name: after[name] - before[name] for name in names}
    splits = {
        name: SplitDiff(
            rows=Counts(*map(len, pairs[name])),
            prompts=Counts(*(int(rows["prompt_id"].nunique()) for rows in pairs[name])),
            added=come[name].total(),
            removed=left[name].total(),
            months=_months(*pairs[name]),
        )
        for name in names
    }
    moved = []
    for source, leaving in left.items():
        for target, coming in come.items():
            if both := leaving & coming:
                moved.append({"from": source, "to": target, "rows": both.total()})
                leaving -= both
                coming -= both
    new_rows, gone = (sum(rows.total() for rows in side.values()) for side in (come, left))
    return ConversationsDiff(new_rows, gone, moved, splits)


def _digests(rows: pd.DataFrame, source: str) -> Counter[int]:
    """Return how often each content stands in the rows, by a hash of 64 bits."""
    try:
        table = pa.Table.from_pandas(rows[_CONTENT.names], schema=_CONTENT, preserve_index=False)
    except (pa.ArrowException, TypeError) as error:
        raise InputError(f"{source}: not canonical conversations ({error}); make them with `dvc repro data`") from None
    texts = pl.DataFrame(table).select(pl.struct(pl.all()).struct.json_encode()).to_series()
    return Counter(texts.hash().to_list())


def _months(old: pd.DataFrame, new: pd.DataFrame) -> dict[str, Counts]:
    """Return the number of rows of each month before and after; undated rows come last."""
    before, after = (Counter((date or "")[:7] or UNDATED for date in rows["date"].fillna("")) for rows in (old, new))
    return {month: Counts(before[month], after[month]) for month in sorted(before.keys() | after.keys())}
