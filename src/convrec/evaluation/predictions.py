"""`convrec score`: the scores of a file of anybody's lists, outside the graph (docs/evaluation.md)."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from convrec.data.catalog import Catalog
from convrec.data.json_keys import repeated_key
from convrec.data.rows import usable_item
from convrec.data.titles import line
from convrec.errors import InputError
from convrec.evaluation.comparison import Interval, mean_intervals
from convrec.evaluation.scoring import RowScore, WrittenList, read_list, score_row, score_table
from convrec.matching import Protocol, Truth
from convrec.parsing import make_entry, parse_line

SAMPLES, SEED = 1000, 17  # of the bootstrap
_SHOWN = 60  # characters of a value in a message


class Settings(NamedTuple):
    """How predictions are scored."""

    cutoffs: Sequence[int] = (5, 10, 15, 20)
    list_length: int = 20
    protocol: Protocol = "evaluation"
    tolerance: int = 2


class Scores(NamedTuple):
    """Intervals by metric (`recall@5`), over `n` rows of `n_prompts` prompts."""

    n: int
    n_prompts: int
    intervals: dict[str, Interval]

    def to_json(self) -> dict[str, Any]:
        """Return the means by metric, and `intervals`: low and high by metric."""
        means = {name: interval.mean for name, interval in self.intervals.items()}
        intervals = {name: [interval.low, interval.high] for name, interval in self.intervals.items()}
        return {"n": self.n, "n_prompts": self.n_prompts, **means, "intervals": intervals}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@lru_cache(maxsize=100_000)  # the same items are liked again and again
def _truth(title: str, year: int) -> Truth:
    return Truth(**usable_item((title, year)))


def _is_plain(value: object) -> bool:
    return type(value) is list and len(value) == 2 and type(value[0]) is str and type(value[1]) is int


def _truths(values: object) -> list[Truth]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"field 'groundtruth' is {_shown(values)}; give a list of [title, year], at least one")
    found = []
    for value in values:
        try:
            found.append(_truth(*value) if _is_plain(value) else Truth(**usable_item(value)))
        except ValueError as problem:
            raise ValueError(
                f"field 'groundtruth': {_shown(value)}: {problem}; give [title, year] or {{title, year}}, year a "
                "number or null"
            ) from None
    return found


@lru_cache(maxsize=100_000)
def _seen_title(text: str) -> str:
    """Return the title of a text `Title (Year)` or `Title`: a title counts as seen whatever its year."""
    return usable_item(text)["title"]


def _seen(values: object) -> list[str]:
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(title, str) for title in values):
        raise ValueError(f"field 'seen_titles' is {_shown(values)}; give a list of titles as texts")
    try:
        return list(map(_seen_title, values))
    except ValueError as problem:
        raise ValueError(f"field 'seen_titles' is {_shown(values)}: {problem}; give titles as texts") from None


def _list_of_items(values: object, catalog: Catalog, tolerance: int) -> WrittenList:
    """Return a list given as items: a text is read as a line, a pair is a title and a year as they stand."""
    if not isinstance(values, list):
        raise ValueError(f"field 'items' is {_shown(values)}; give a list of texts or of [title, year]")
    entries, lines = [], []
    for value in values:
        if isinstance(value, str):
            entries.append(parse_line(value, catalog, tolerance))
            lines.append(value)
            continue
        try:
            item = usable_item(value)
        except ValueError as problem:
            raise ValueError(
                f"field 'items': {_shown(value)}: {problem}; give `Title (Year)`, or [title, year], year a number or "
                "null"
            ) from None
        entries.append(make_entry(item["title"], item["year"], catalog, tolerance))
        lines.append(line(item["title"], item["year"]))
    return WrittenList(entries, all(catalog.entry_of_line(text) is not None for text in lines))


def _written(row: dict[str, Any], catalog: Catalog, tolerance: int) -> WrittenList:
    if ("response" in row) == ("items" in row):
        both = "both" if "response" in row else "neither"
        raise ValueError(f"{both} of the fields 'response' and 'items'; give one of the two")
    if "items" in row:
        return _list_of_items(row["items"], catalog, tolerance)
    if not isinstance(row["response"], str):
        raise ValueError(f"field 'response' is {_shown(row['response'])}; give a text of one item a line")
    return read_list(row["response"], catalog, tolerance)


def _prompt(row: dict[str, Any], number: int) -> str | int:
    """Return what the rows of one prompt share; a row without `prompt_id` is a prompt of its own."""
    value = row.get("prompt_id")
    if value is None:
        return number
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(f"field 'prompt_id' is {_shown(value)}; give a text or an integer, or leave it out")
    return str(value)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object of the lines of a file, blank ones left out."""
    try:
        with path.open("rb") as lines:
            for number, text in enumerate(lines, start=1):
                if number == 1:
                    text = text.removeprefix(b"\xef\xbb\xbf")
                if text.isspace():
                    continue
                try:
                    row = orjson.loads(text.decode("utf-8"))
                    repeated = repeated_key(text, row)
                except UnicodeDecodeError:
                    raise InputError(f"{path}: line {number}: not UTF-8; convert the file to UTF-8") from None
                except orjson.JSONDecodeError as error:
                    problem = f"{error.msg} at column {error.colno}"
                    raise InputError(f"{path}: line {number}: not JSON ({problem}); give one object a line") from None
                except (ValueError, RecursionError) as error:  # what orjson reads, and Python's own reader does not
                    raise InputError(f"{path}: line {number}: not readable JSON ({error}); simplify it") from None
                if repeated is not None:
                    raise InputError(f"{path}: line {number}: field {_shown(repeated)} stands twice; remove one")
                if not isinstance(row, dict):
                    raise InputError(f"{path}: line {number}: {_shown(row)} is no object; give one object a line")
                yield number, row
    except OSError as error:
        raise InputError(f"--predictions {path}: not readable ({error.strerror}); name a JSON-lines file") from None


def score_predictions(path: Path, catalog: Catalog, settings: Settings) -> Scores:
    """Return the scores of a JSON-lines file of predictions (docs/evaluation.md).

    Raises `InputError` naming file, line, field and remedy on the first row that cannot be scored.
    """
    with _uncollected():
        table = _score_rows(path, catalog, settings)
    intervals = mean_intervals(table, [name for name in table if name != "prompt_id"], SAMPLES, SEED)
    named = {name.replace("_at_", "@"): interval for name, interval in intervals.items()}
    return Scores(len(table), int(table["prompt_id"].nunique()), named)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Stop the cyclic garbage collector, which finds nothing in rows, but takes a seventh of the time to say so."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _score_rows(path: Path, catalog: Catalog, settings: Settings) -> pd.DataFrame:
    cutoffs, num_ranks, protocol, tolerance = settings
    prompts: list[str | int] = []
    scores: list[RowScore] = []
    for number, row in _rows(path):
        try:
            written = _written(row, catalog, tolerance)
            truths, seen = _truths(row.get("groundtruth")), _seen(row.get("seen_titles"))
            prompts.append(_prompt(row, number))
        except ValueError as problem:
            raise InputError(f"{path}: line {number}: {problem}") from None
        scores.append(score_row(written, truths, seen, catalog, num_ranks, protocol, tolerance))
    if not scores:
        raise InputError(f"{path}: it holds no row; give one object with a list and its ground truth a line")
    return score_table(prompts, scores, cutoffs)


def print_scores(scores: Scores, settings: Settings) -> None:
    """Print one row a metric: its mean, its interval and its n."""
    console = Console(highlight=False)
    console.print(
        f"{scores.n:,} rows, {scores.n_prompts:,} prompts; protocol {settings.protocol}, {settings.list_length} ranks"
    )
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("metric", "mean", "95 % interval", "n"):
        table.add_column(heading, justify="left" if heading == "metric" else "right", no_wrap=True)
    for name, interval in scores.intervals.items():
        spread = f"{interval.low:.4f} to {interval.high:.4f}"
        table.add_row(name, f"{interval.mean:.4f}", spread, f"{interval.n:,}")
    console.print(table)
