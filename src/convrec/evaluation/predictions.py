"""`convrec score`: scores a file with the lists of any system, outside the graph (docs/evaluation.md)."""

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd
from rich.console import Console

from convrec.data.catalog import Catalog, Entry
from convrec.data.json_lines import json_lines
from convrec.data.matching import UNKNOWN, Protocol, Truth, make_target
from convrec.data.parsing import WrittenList, make_entry, parse_line, read_list
from convrec.data.rows import usable_item
from convrec.data.titles import line, usable_id
from convrec.evaluation.comparison import KEYS, Interval, mean_intervals
from convrec.evaluation.published import PublishedProtocol
from convrec.evaluation.scoring import RowScore, score_row, score_table
from convrec.project.errors import InputError
from convrec.project.table import TextTable

logger = logging.getLogger("convrec.score")

SAMPLES, SEED = 1000, 17  # bootstrap samples and seed
_EMPTY = "{path}: no rows; give one object per line, with a list and its ground truth"
_SHOWN = 60  # maximum characters of a value in a message


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
        intervals = {name: [interval.low, interval.high] for name, interval in self.intervals.items()}
        return {"n": self.n, "n_prompts": self.n_prompts, **means, "intervals": intervals}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@lru_cache(maxsize=100_000)  # many rows have the same items
def _truth(title: str, year: int) -> Truth:
    return Truth(**usable_item((title, year)))


def _is_plain(value: object) -> bool:
    return type(value) is list and len(value) == 2 and type(value[0]) is str and type(value[1]) is int


def _id(value: object) -> str:
    """Return the id of an item given as `{id}`, or "" if it has none."""
    return usable_id(value.get("id"), "id") if isinstance(value, dict) else ""


def _truths(values: object, catalog: Catalog, line_column: str | None) -> list[Truth | int]:
    """Return the ground truth: a `Truth` for each item, or a catalog index for an item given by its id."""
    if not isinstance(values, list) or not values:
        raise ValueError(f"field 'groundtruth' is {_shown(values)}; give a list of [title, year], at least one")
    found: list[Truth | int] = []
    for value in values:
        try:
            if _is_plain(value):
                found.append(_truth(*value))
            elif own_id := _id(value):
                index = catalog.index_of_id(own_id)
                found.append(UNKNOWN if index is None else index)
            else:
                found.append(Truth(**usable_item(value, line_column)))
        except ValueError as problem:
            raise ValueError(
                f"field 'groundtruth': {_shown(value)}: {problem}; give [title, year], {{title, year}} or {{id}}, year "
                "a number or null"
            ) from None
    return found


@lru_cache(maxsize=100_000)
def _seen_title(text: str) -> str:
    """Return the title of a text `Title (Year)` or `Title`: a title counts as seen with any year."""
    return usable_item(text)["title"]


def _seen(values: object, catalog: Catalog, line_column: str | None) -> tuple[list[str], set[int]]:
    """Return the seen titles, and the catalog indices of items given by their id."""
    titles: list[str] = []
    items: set[int] = set()
    if values is None:
        return titles, items
    if not isinstance(values, list) or not all(isinstance(value, (str, dict)) for value in values):
        raise ValueError(f"field 'seen_titles' is {_shown(values)}; give a list of titles as texts, or of {{id}}")
    for value in values:
        try:
            if isinstance(value, str):
                titles.append(_seen_title(value))
            elif not (own_id := _id(value)):
                titles.append(usable_item(value, line_column)["title"])
            elif (index := catalog.index_of_id(own_id)) is not None:
                items.add(index)
        except ValueError as problem:
            raise ValueError(
                f"field 'seen_titles': {_shown(value)}: {problem}; give titles as texts, or {{id}}"
            ) from None
    return titles, items


def _list_of_items(values: object, catalog: Catalog, tolerance: int, line_column: str | None) -> WrittenList:
    """Return a list given as items: a text is parsed as a line, an id is looked up, other items are used as given."""
    if not isinstance(values, list):
        raise ValueError(f"field 'items' is {_shown(values)}; give a list of texts or of [title, year]")
    entries: list[Entry | None] = []
    is_exact = True
    for value in values:
        if isinstance(value, str):
            entries.append(parse_line(value, catalog, tolerance))
            is_exact &= catalog.entry_of_line(value) is not None
            continue
        try:
            if own_id := _id(value):
                index = catalog.index_of_id(own_id)
                item = None if index is None else catalog.items[index]
                entries.append(Entry(item.title, item.year, index) if item else Entry(own_id, None, None))
                is_exact &= item is not None
                continue
            title, year = usable_item(value, line_column).values()
        except ValueError as problem:
            raise ValueError(
                f"field 'items': {_shown(value)}: {problem}; give `Title (Year)`, [title, year], {{title, year}} or "
                "{id}, year a number or null"
            ) from None
        entries.append(make_entry(title, year, catalog, tolerance))
        is_exact &= catalog.entry_of_line(line(title, year)) is not None
    items = [None if entry is None else entry.index for entry in entries]
    years = {rank: entry.year for rank, entry in enumerate(entries) if entry}
    return WrittenList(items, years, [entry for entry in entries if entry and entry.index is None], is_exact)


def _written(row: dict[str, Any], catalog: Catalog, tolerance: int, line_column: str | None) -> WrittenList:
    if ("response" in row) == ("items" in row):
        both = "both" if "response" in row else "neither"
        raise ValueError(f"{both} of the fields 'response' and 'items'; give exactly one")
    if "items" in row:
        return _list_of_items(row["items"], catalog, tolerance, line_column)
    if not isinstance(row["response"], str):
        raise ValueError(f"field 'response' is {_shown(row['response'])}; give a text with one item per line")
    return read_list(row["response"], catalog, tolerance)


def _key(row: dict[str, Any], name: str) -> str | None:
    """Return the id of a row's prompt, conversation or person as text; None for a row without it."""
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(f"field {name!r} is {_shown(value)}; give a text or an integer, or leave it out")
    return str(value)


def _keys(row: dict[str, Any], number: int) -> tuple[str | int, str | int]:
    """Return the prompt and the person of a row (see `comparison`).

    A row without `prompt_id` is its own prompt. Without `user_id`, the person is the conversation, or else the prompt.
    """
    key, user, conversation = (_key(row, name) for name in ("prompt_id", "user_id", "conversation_id"))
    prompt = number if key is None else key
    return prompt, user or conversation or prompt


def score_predictions(path: Path, catalog: Catalog, settings: ScoringSettings) -> PredictionScores:
    """Return the scores of a JSON-lines file of predictions (docs/evaluation.md).

    Raises `InputError` for the first row that cannot be scored, with file, line, field and remedy.
    """
    with _uncollected():
        score = _score_published if settings.protocol == "published" else _score_rows
        table = score(path, catalog, settings)
    intervals = mean_intervals(table, [name for name in table if name not in KEYS], SAMPLES, SEED)
    named = {name.replace("_at_", "@"): interval for name, interval in intervals.items()}
    return PredictionScores(len(table), int(table["prompt_id"].nunique()), named)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the cyclic garbage collector: rows contain no cycles, and it would take a seventh of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _score_rows(path: Path, catalog: Catalog, settings: ScoringSettings) -> pd.DataFrame:
    cutoffs, num_ranks, protocol, tolerance, line_column = settings
    assert protocol != "published"
    keys: list[tuple[str | int, str | int]] = []
    scores: list[RowScore] = []
    num_unclear = 0
    for number, row in json_lines(path):
        try:
            written = _written(row, catalog, tolerance, line_column)
            truths = _truths(row.get("groundtruth"), catalog, line_column)
            seen, seen_items = _seen(row.get("seen_titles"), catalog, line_column)
            keys.append(_keys(row, number))
        except ValueError as problem:
            raise InputError(f"{path}: line {number}: {problem}") from None
        target = make_target(truths, seen, catalog, tolerance, seen_items)
        num_unclear += sum(_is_unclear(entry, catalog) for entry in written.others)
        scores.append(score_row(written, target, catalog, num_ranks, protocol, tolerance))
    if not scores:
        raise InputError(_EMPTY.format(path=path))
    if num_unclear:
        logger.warning(
            "%d lines have a title that several items share and no year, so they count as outside the catalog; write "
            "`Title (Year)`",
            num_unclear,
        )
    prompts, persons = zip(*keys, strict=True)
    return score_table(prompts, persons, scores, cutoffs)


def _score_published(path: Path, catalog: Catalog, settings: ScoringSettings) -> pd.DataFrame:
    """Return recall and NDCG of each row by the authors' protocol, which reads texts and titles as they are written."""
    protocol = PublishedProtocol(catalog, settings.cutoffs)
    table = []
    for number, row in json_lines(path):
        try:
            if not isinstance(row.get("response"), str):
                raise ValueError("protocol 'published' needs the field 'response', a text with one item per line")
            truths = _truths(row.get("groundtruth"), catalog, settings.line_column)
            if not all(isinstance(truth, Truth) for truth in truths):
                raise ValueError("protocol 'published' needs [title, year] in the field 'groundtruth', not ids")
            seen, _ = _seen(row.get("seen_titles"), catalog, settings.line_column)
            keys = dict(zip(KEYS, _keys(row, number), strict=True))
        except ValueError as problem:
            raise InputError(f"{path}: line {number}: {problem}") from None
        known = [truth for truth in truths if isinstance(truth, Truth)]
        table.append({**keys, **protocol.scores(row["response"], known, set(seen))})
    if not table:
        raise InputError(_EMPTY.format(path=path))
    return pd.DataFrame(table)


def _is_unclear(entry: Entry, catalog: Catalog) -> bool:
    """Return whether an entry has no index because it has no year and several items have its title."""
    return entry.year is None and bool(catalog.indices_of_title(entry.title))


def print_scores(scores: PredictionScores, settings: ScoringSettings) -> None:
    """Print one row for each metric: its mean, its interval and its n."""
    sizes = f"{scores.n:,} rows, {scores.n_prompts:,} prompts"
    Console(highlight=False).print(f"{sizes}; protocol {settings.protocol}, {settings.list_length} ranks")
    rows = [
        (name, f"{interval.mean:.4f}", f"{interval.low:.4f} to {interval.high:.4f}", f"{interval.n:,}")
        for name, interval in scores.intervals.items()
    ]
    TextTable(("metric", "mean", "95 % interval", "n"), rows).print()
