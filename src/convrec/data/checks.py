"""Checks of canonical rows, the same for every source: problems are counted, and rows are kept or dropped."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from convrec.data.catalog import Catalog
from convrec.data.quarantine import LEAKS, Quarantine
from convrec.data.row_files import Row, Rows
from convrec.data.schemas import spooled
from convrec.data.titles import fold, line

Policy = Literal["keep", "drop"]


def check_rows(
    rows: Iterable[Row],
    catalog: Catalog,
    quarantine: Quarantine,
    *,
    dated: bool,
    seen_truth: Policy,
    duplicate_rows: Policy,
) -> tuple[Rows, dict[str, int]]:
    """Return the rows without what is to be dropped, and how often each problem was met.

    Two are about ground truth that no list can hit: items that the catalog does not hold (`outside_catalog`), which are
    kept, and items that the conversation has named (`seen_truth`). `duplicate_rows` equal an earlier row in every
    column. With `dated`, rows without a date are dropped, and so is a row that has no ground truth left.
    """
    found = Counter(outside_catalog=0, seen_truth=0, duplicate_rows=0)
    known = set[int]()  # hashes of 64 bits: a false match is as likely as one in 10^9 for 100,000 rows

    def checked() -> Iterator[Row]:
        for row in rows:
            quarantine.count("rows")
            prompt, items, seen = row["prompt_id"], row["groundtruth"], row["seen_titles"]
            left = []
            for item in items:
                problem = _problem(item, seen, catalog)
                if problem is not None:
                    found[problem] += 1
                if problem == "seen_truth" and seen_truth == "drop":
                    quarantine.add("groundtruth", prompt, "seen in the conversation", line(item["title"], item["year"]))
                else:
                    left.append(item)
            lines = [line(item["title"], item["year"]) for item in items]
            texts = [row.get(name, "") for name in ("prompt_id", "date", "conversation_id", "user_id")]
            key = hash((*texts, *map(tuple, (lines, seen, row["disliked_titles"]))))
            repeated = key in known
            known.add(key)
            found["duplicate_rows"] += repeated
            problems = {
                "no ground truth is left": not left,
                "no date": dated and not row["date"],
                "equal to an earlier row": repeated and duplicate_rows == "drop",
            }
            reason = next((text for text, is_so in problems.items() if is_so), None)
            if reason is None:
                yield row | {"groundtruth": left}
            else:
                quarantine.add("rows", prompt, reason, "; ".join(lines))

    return spooled(checked()), dict(found)


def _problem(item: dict[str, Any], seen_titles: list[str], catalog: Catalog) -> str | None:
    """Return why no list can hit an item of a ground truth, None where one can."""
    title, year = fold(item["title"]), item["year"]
    index = catalog.find(title, year)
    named = set() if index is None else {index}
    if index is None and year is None:  # all items of its title are hits, if a year does not decide
        named = {i for i in catalog.indices_of_title(title) if catalog.folded_titles[i] == title}
    if title in map(fold, seen_titles) or (named and named <= catalog.indices_of_titles(seen_titles)):
        return "seen_truth"
    return None if named else "outside_catalog"


def drop_leaks(train: Rows, leaks: Sequence[str | None], quarantine: Quarantine) -> Rows:
    """Return the training rows that leak nothing held out; `leaks` holds for each row the reason why it does."""
    quarantine.count(LEAKS, len(train))
    is_leak = np.array([reason is not None for reason in leaks], dtype=bool)
    names = train[is_leak].values("prompt_id", "conversation_id")
    for (prompt, conversation), reason in zip(names, filter(None, leaks), strict=True):
        quarantine.add(LEAKS, prompt, reason, conversation)
    return train[~is_leak]
