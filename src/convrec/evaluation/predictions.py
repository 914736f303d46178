"""`convrec score`: scores a file with the lists of any system, outside the graph (docs/evaluation.md)."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd
from rich.console import Console

from convrec.data.catalog import Catalog, Entry
from convrec.data.json_lines import json_lines
from convrec.data.matching import UNKNOWN, Protocol, Truth, make_target
from convrec.data.parsing import WrittenList, make_entry, parse_line, read_list
from convrec.data.rows import usable_item
from convrec.data.titles import usable_id
from convrec.evaluation.comparison import KEYS, Interval, mean_intervals
from convrec.evaluation.published import PublishedProtocol
from convrec.evaluation.scoring import RowScore, score_row, score_table
from convrec.project.errors import InputError
from convrec.project.table import TextTable

logger = logging.getLogger("convrec.score")

SAMPLES, SEED = 1000, 17  # bootstrap samples and seed


class ScoringSettings(NamedTuple):
    """Settings of `convrec score`."""

    cutoffs: Sequence[int] = (5, 10, 15, 20)
    list_length: int = 20
    protocol: Protocol | Literal["published"] = "evaluation"
    tolerance: int = 2
    line_column: str | None = None


class PredictionScores(NamedTuple):
    """Intervals by metric (`recall@5`), over `n` rows of `n_prompts` prompts."""

    n: int
    n_prompts: int
    intervals: dict[str, Interval]

    def to_json(self) -> dict[str, Any]:
        """Return the mean of each metric, and `intervals`: low and high of each metric."""
        means = {name: interval.mean for name, interval in self.intervals.items()}
        bounds = {"intervals": {name: [one.low, one.high] for name, one in self.intervals.items()}}
        return {"n": self.n, "n_prompts": self.n_prompts, **means, **bounds}


def _each(row: dict[str, Any], field: str, read: Callable[[Any], Any], form: str) -> list[Any]:
    """Return what is read of each value of a list."""
    values, found = row.get(field), []
    if not isinstance(values, list) or (field == "groundtruth" and not values):
        raise ValueError(f"field {field!r} is {values!r:.60}; give a list of {form}")
    for value in values:
        try:
            found.append(read(value))
        except ValueError as problem:
            raise ValueError(f"field {field!r}: {value!r:.60}: {problem}; give {form}, year a number or null") from None
    return found


class _Reader(NamedTuple):
    """Reads the parts of a row. Each raises `ValueError` with field, value and remedy."""

    catalog: Catalog
    settings: ScoringSettings

    def item(self, value: object) -> Truth | int:
        """Return title and year of an item; of one that is given as `{id}` its catalog index, `UNKNOWN` without one."""
        if isinstance(value, dict) and (own_id := usable_id(value.get("id"), "id")):
            index = self.catalog.index_of_id(own_id)
            return UNKNOWN if index is None else index
        return Truth(**usable_item(value, self.settings.line_column))

    def items(self, row: dict[str, Any], field: str) -> list[Truth | int]:
        return _each(row, field, self.item, "`Title (Year)`, [title, year], {title, year} or {id}")

    def entry(self, value: object) -> tuple[Entry | None, bool]:
        """Return an item of a list, and whether its line is one of the catalog; a text is parsed as a line."""
        catalog, tolerance = self.catalog, self.settings.tolerance
        if isinstance(value, str):
            return parse_line(value, catalog, tolerance), catalog.entry_of_line(value) is not None
        item = self.item(value)
        if isinstance(item, Truth):
            return make_entry(*item, catalog, tolerance), catalog.entry_of_line(str(item)) is not None
        if item == UNKNOWN and isinstance(value, dict):
            return Entry(str(value["id"]), None, None), False
        return Entry(catalog.items[item].title, catalog.items[item].year, item), True

    def written(self, row: dict[str, Any]) -> WrittenList:
        if ("response" in row) == ("items" in row):
            raise ValueError("give exactly one of the fields 'response' and 'items'")
        if "response" in row:
            return read_list(self.response(row), self.catalog, self.settings.tolerance)
        entries = _each(row, "items", self.entry, "`Title (Year)`, [title, year], {title, year} or {id}")
        items = [None if entry is None else entry.index for entry, _ in entries]
        years = {rank: entry.year for rank, (entry, _) in enumerate(entries) if entry}
        others = [entry for entry, _ in entries if entry and entry.index is None]
        return WrittenList(items, years, others, all(is_exact for _, is_exact in entries))

    def response(self, row: dict[str, Any]) -> str:
        if not isinstance(row.get("response"), str):
            raise ValueError(f"field 'response' is {row.get('response')!r:.60}; give a text with one item per line")
        return row["response"]

    def keys(self, row: dict[str, Any], number: int) -> tuple[str | int, str | int]:
        """Return the prompt and the person of a row (see `comparison`).

        A row without `prompt_id` is its own prompt. Without `user_id`, the person is the conversation, or else the
        prompt.
        """
        ids = {name: row.get(name) for name in ("prompt_id", "user_id", "conversation_id")}
        for name, value in ids.items():
            if isinstance(value, bool) or not isinstance(value, (str, int, type(None))):
                raise ValueError(f"field {name!r} is {value!r:.60}; give a text or an integer, or leave it out")
        key, user, conversation = ("" if value is None else str(value) for value in ids.values())
        prompt = number if ids["prompt_id"] is None else key
        return prompt, user or conversation or prompt


def score_predictions(path: Path, catalog: Catalog, settings: ScoringSettings) -> PredictionScores:
    """Return the scores of a JSON-lines file of predictions (docs/evaluation.md).

    Raises `InputError` for the first row that cannot be scored, with file, line, field and remedy.
    """
    table = _score_rows(path, _Reader(catalog, settings))
    intervals = mean_intervals(table, [name for name in table if name not in KEYS], SAMPLES, SEED)
    named = {name.replace("_at_", "@"): interval for name, interval in intervals.items()}
    return PredictionScores(len(table), int(table["prompt_id"].nunique()), named)


def _score_rows(path: Path, reader: _Reader) -> pd.DataFrame:
    catalog, (cutoffs, num_ranks, protocol, tolerance, _) = reader
    published, keys, num_unclear = PublishedProtocol(catalog, cutoffs), [], 0
    by_authors: list[dict[str, float]] = []
    scores: list[RowScore] = []
    for number, row in json_lines(path):
        try:
            truths = reader.items(row, "groundtruth")
            seen = [] if row.get("seen_titles") is None else reader.items(row, "seen_titles")
            titles = [item.title for item in seen if isinstance(item, Truth)]
            keys.append(reader.keys(row, number))
            if protocol == "published":
                if "response" not in row or any(isinstance(truth, int) for truth in truths):
                    raise ValueError("protocol 'published' needs the field 'response', and no ids in 'groundtruth'")
                known = [truth for truth in truths if isinstance(truth, Truth)]
                by_authors.append(published.scores(reader.response(row), known, set(titles)))
                continue
            written = reader.written(row)
        except ValueError as problem:
            raise InputError(f"{path}: line {number}: {problem}") from None
        items = {item for item in seen if isinstance(item, int) and item != UNKNOWN}
        target = make_target(truths, titles, catalog, tolerance, items)
        without_year = [entry.title for entry in written.others if entry.year is None]
        num_unclear += sum(bool(catalog.indices_of_title(title)) for title in without_year)
        scores.append(score_row(written, target, catalog, num_ranks, protocol, tolerance))
    if not keys:
        raise InputError(f"{path}: no rows; give one object per line, with a list and its ground truth")
    if num_unclear:
        logger.warning(
            "%d lines have a title that several items share and no year, so they count as outside the catalog; write "
            "`Title (Year)`",
            num_unclear,
        )
    if by_authors:
        return pd.DataFrame(keys, columns=KEYS).join(pd.DataFrame(by_authors))
    prompts, persons = zip(*keys, strict=True)
    return score_table(prompts, persons, scores, cutoffs)


def print_scores(scores: PredictionScores, settings: ScoringSettings) -> None:
    """Print one row for each metric: its mean, its interval and its n."""
    sizes = f"{scores.n:,} rows, {scores.n_prompts:,} prompts"
    Console(highlight=False).print(f"{sizes}; protocol {settings.protocol}, {settings.list_length} ranks")
    rows = [
        (name, f"{interval.mean:.4f}", f"{interval.low:.4f} to {interval.high:.4f}", f"{interval.n:,}")
        for name, interval in scores.intervals.items()
    ]
    TextTable(("metric", "mean", "95 % interval", "n"), rows).print()
