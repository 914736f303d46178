"""Checks of canonical rows, the same for every source: problems are counted, and rows are kept or dropped."""

from collections import Counter
from typing import Any, Literal

import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.quarantine import LEAKS, Quarantine
from convrec.data.titles import fold, line

Policy = Literal["keep", "drop"]
Item = dict[str, Any]


def check_rows(
    rows: pd.DataFrame,
    catalog: Catalog,
    quarantine: Quarantine,
    *,
    dated: bool,
    outside_catalog: Policy,
    seen_truth: Policy,
    duplicate_rows: Policy,
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return the rows without what is to be dropped, their index kept, and how often each problem was met.

    `outside_catalog` and `seen_truth` are about ground truth that no list can hit: items that the catalog does not
    hold, and items that the conversation has named. `duplicate_rows` equal an earlier row in every column. With
    `dated`, rows without a date are dropped, and so is a row that has no ground truth left. Shape: a subset of `rows`
    (see `schemas.conform`).
    """
    found = Counter(outside_catalog=0, seen_truth=0, duplicate_rows=0)
    policies = {"outside_catalog": outside_catalog, "seen_truth": seen_truth}
    reasons = {"outside_catalog": "not in the catalog", "seen_truth": "seen in the conversation"}
    problems, known = _Problems(catalog), set[tuple]()
    kept: list[bool] = []
    truths: list[list[Item]] = []
    quarantine.count("rows", len(rows))
    columns = ("conversation_id", "prompt_id", "date", "groundtruth", "seen_titles", "user_id", "disliked_titles")
    values = (rows[name].to_list() for name in columns)
    for conversation, prompt, date, items, seen, user, disliked in zip(*values, strict=True):
        left = []
        for item, problem in zip(items, problems.of(items, seen), strict=True):
            if problem is not None:
                found[problem] += 1
            if problem is not None and policies[problem] == "drop":
                quarantine.add("groundtruth", prompt, reasons[problem], line(item["title"], item["year"]))
            else:
                left.append(item)
        titles = tuple((i["title"], i["year"]) for i in items)
        key = (conversation, prompt, user, date, titles, tuple(seen), tuple(disliked))
        repeated = key in known
        known.add(key)
        found["duplicate_rows"] += repeated
        reason = None
        if not left:
            reason = "no ground truth is left"
        elif dated and not date:
            reason = "no date"
        elif repeated and duplicate_rows == "drop":
            reason = "equal to an earlier row"
        if reason is not None:
            quarantine.add("rows", prompt, reason, "; ".join(line(i["title"], i["year"]) for i in items))
        kept.append(reason is None)
        truths.append(left)
    checked = rows.assign(groundtruth=pd.Series(truths, index=rows.index, dtype=rows["groundtruth"].dtype))
    return checked[kept], dict(found)


class _Problems:
    """Finds out why no list can hit an item; look-ups are cached because the same items and titles recur."""

    def __init__(self, catalog: Catalog):
        self._catalog = catalog
        self._items: dict[tuple[str, int | None], tuple[str, set[int]]] = {}
        self._titles: dict[str, tuple[str, list[int]]] = {}

    def of(self, items: list[Item], seen_titles: list[str]) -> list[str | None]:
        """Return the problem of each item of a ground truth, None where a list can hit it."""
        seen: set[str | int] = set()
        for title in seen_titles:
            if title not in self._titles:
                self._titles[title] = fold(title), self._catalog.indices_of_title(title)
            folded, indices = self._titles[title]
            seen.update(indices, [folded])
        problems: list[str | None] = []
        for item in items:
            key = item["title"], item["year"]
            if key not in self._items:
                self._items[key] = fold(item["title"]), _named(item, self._catalog)
            folded, named = self._items[key]
            if folded in seen or (named and named <= seen):
                problems.append("seen_truth")
            else:
                problems.append(None if named else "outside_catalog")
        return problems


def _named(item: Item, catalog: Catalog) -> set[int]:
    """Return the indices of the items that are hits for a ground truth: all of its title, if a year does not decide."""
    index = catalog.find(item["title"], item["year"])
    if index is None and item["year"] is None:
        title = fold(item["title"])
        return {i for i in catalog.indices_of_title(title) if fold(catalog.items[i].title) == title}
    return set() if index is None else {index}


def drop_leaks(train: pd.DataFrame, leaks: list[str | None], quarantine: Quarantine) -> pd.DataFrame:
    """Return the training rows that leak nothing held out; `leaks` holds for each row the reason why it does."""
    quarantine.count(LEAKS, len(train))
    for prompt, reason in zip(train["prompt_id"].to_list(), leaks, strict=True):
        if reason is not None:
            quarantine.add(LEAKS, prompt, "held out", reason)
    return train[[reason is None for reason in leaks]]
