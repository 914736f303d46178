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
    known, kept, truths = set[tuple](), list[bool](), list[list[Item]]()
    quarantine.count("rows", len(rows))
    columns = ("prompt_id", "date", "groundtruth", "seen_titles", "disliked_titles", "conversation_id", "user_id")
    for prompt, date, items, seen, disliked, *ids in zip(*(rows[name].to_list() for name in columns), strict=True):
        left = []
        for item in items:
            problem = _problem(item, seen, catalog)
            if problem is not None:
                found[problem] += 1
            if problem is not None and policies[problem] == "drop":
                quarantine.add("groundtruth", prompt, reasons[problem], line(item["title"], item["year"]))
            else:
                left.append(item)
        lines = [line(item["title"], item["year"]) for item in items]
        key = (prompt, date, *ids, *map(tuple, (lines, seen, disliked)))
        repeated = key in known
        known.add(key)
        found["duplicate_rows"] += repeated
        problems = {
            "no ground truth is left": not left,
            "no date": dated and not date,
            "equal to an earlier row": repeated and duplicate_rows == "drop",
        }
        reason = next((text for text, is_so in problems.items() if is_so), None)
        if reason is not None:
            quarantine.add("rows", prompt, reason, "; ".join(lines))
        kept.append(reason is None)
        truths.append(left)
    checked = rows.assign(groundtruth=pd.Series(truths, index=rows.index, dtype=rows["groundtruth"].dtype))
    return checked[kept], dict(found)


def _problem(item: Item, seen_titles: list[str], catalog: Catalog) -> str | None:
    """Return why no list can hit an item of a ground truth, None where one can."""
    title, year = fold(item["title"]), item["year"]
    index = catalog.find(title, year)
    named = set() if index is None else {index}
    if index is None and year is None:  # all items of its title are hits, if a year does not decide
        named = {i for i in catalog.indices_of_title(title) if catalog.folded_titles[i] == title}
    if title in map(fold, seen_titles) or (named and named <= catalog.indices_of_titles(seen_titles)):
        return "seen_truth"
    return None if named else "outside_catalog"


def drop_leaks(train: pd.DataFrame, leaks: list[str | None], quarantine: Quarantine) -> pd.DataFrame:
    """Return the training rows that leak nothing held out; `leaks` holds for each row the reason why it does."""
    quarantine.count(LEAKS, len(train))
    for prompt, conversation, reason in zip(train["prompt_id"], train["conversation_id"], leaks, strict=True):
        if reason is not None:
            quarantine.add(LEAKS, prompt, reason, conversation)
    return train[[reason is None for reason in leaks]]
