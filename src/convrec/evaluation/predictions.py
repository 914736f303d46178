"""`convrec score`: scores a file with the lists of any system, outside the graph (docs/evaluation.md)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, Field, StrictInt, StrictStr, ValidationError
from rich.console import Console

from convrec.data.catalog import Catalog
from convrec.data.json_lines import json_lines
from convrec.data.matching import UNKNOWN, Protocol, Truth, make_target
from convrec.data.parsing import read_list
from convrec.data.rows import usable_item
from convrec.data.titles import usable_id, usable_user
from convrec.evaluation.comparison import KEYS, Interval, mean_intervals
from convrec.evaluation.headline import TOO_FEW
from convrec.evaluation.scoring import RowScore, score_row, score_table
from convrec.project.errors import InputError
from convrec.project.table import TextTable

SAMPLES, SEED = 1000, 17  # bootstrap samples and seed
_FORMS = "`Title (Year)`, [title, year], {title, year} or {id}, year a number or null"


class ScoringSettings(NamedTuple):
    """Settings of `convrec score`."""

    cutoffs: Sequence[int] = (5, 10, 15, 20)
    list_length: int = 20
    protocol: Protocol = "evaluation"
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


class _Row(BaseModel):
    response: StrictStr | None = None
    items: list[Any] | None = None
    groundtruth: list[Any] = Field(min_length=1)
    seen_titles: list[Any] | None = None
    prompt_id: StrictStr | StrictInt | None = None
    user_id: StrictStr | StrictInt | None = None
    conversation_id: StrictStr | StrictInt | None = None

    def keys(self, number: int) -> tuple[str | int, str | int]:
        """Return the prompt and the person of the row (see `comparison`); without a prompt, it is its own prompt."""
        prompt = usable_id(self.prompt_id, "prompt_id") or number
        return prompt, usable_user(self.user_id) or usable_id(self.conversation_id, "conversation_id") or prompt


def _read(row: _Row, field: str, catalog: Catalog, line_column: str | None) -> list[Truth | int]:
    """Return title and year of each item of a field; of one that is given as `{id}` its index; negative if unknown."""
    found: list[Truth | int] = []
    unknown: dict[str, int] = {}  # ids that differ are different items
    for value in getattr(row, field) or []:
        try:
            if isinstance(value, dict) and (own_id := usable_id(value.get("id"), "id")):
                index = catalog.index_of_id(own_id)
                found.append(unknown.setdefault(own_id, UNKNOWN - len(unknown)) if index is None else index)
            else:
                found.append(Truth(**usable_item(value, line_column)))
        except ValueError as problem:
            raise ValueError(f"field {field!r}: {value!r:.60}: {problem}; give {_FORMS}") from None
    return found


def _score(row: _Row, catalog: Catalog, settings: ScoringSettings) -> RowScore:
    """Return the score of a row."""
    _, num_ranks, protocol, tolerance, column = settings
    if (row.response is None) == (row.items is None):
        raise ValueError("give exactly one of the fields 'response' and 'items'")
    truths, seen, items = (_read(row, field, catalog, column) for field in ("groundtruth", "seen_titles", "items"))
    text = row.response
    if text is None:
        named = (catalog.items[item] if isinstance(item, int) and item >= 0 else item for item in items)
        pairs = zip(row.items or [], named, strict=True)
        text = "\n".join(value if isinstance(value, str) else str(item) for value, item in pairs)
    titles = [item.title for item in seen if isinstance(item, Truth)]
    seen_items = {item for item in seen if isinstance(item, int) and item >= 0}
    target = make_target(truths, titles, catalog, tolerance, seen_items)
    return score_row(read_list(text, catalog, tolerance), target, catalog, num_ranks, protocol, tolerance)


def score_predictions(path: Path, catalog: Catalog, settings: ScoringSettings) -> PredictionScores:
    """Return the scores of a JSON-lines file of predictions (docs/evaluation.md).

    Raises `InputError` for the first row that cannot be scored, with file, line, field and remedy.
    """
    keys, scores = [], []
    for number, raw in json_lines(path):
        try:
            row = _Row.model_validate({name: value for name, value in raw.items() if value == value})  # not NaN
            keys.append(row.keys(number))
            scores.append(_score(row, catalog, settings))
        except ValidationError as error:
            first = error.errors()[0]
            where, value = first["loc"][0], raw.get(str(first["loc"][0]))
            raise InputError(f"{path}: line {number}: field {where!r} is {value!r:.60}: {first['msg']}") from None
        except ValueError as problem:
            raise InputError(f"{path}: line {number}: {problem}") from None
    if not keys:
        raise InputError(f"{path}: no rows; give one object per line, with a list and its ground truth")
    prompts, persons = zip(*keys, strict=True)
    table = score_table(prompts, persons, scores, settings.cutoffs)
    intervals = mean_intervals(table, [name for name in table if name not in KEYS], SAMPLES, SEED)
    named = {name.replace("_at_", "@"): interval for name, interval in intervals.items()}
    return PredictionScores(len(table), int(table["prompt_id"].nunique()), named)


def print_scores(scores: PredictionScores, settings: ScoringSettings) -> None:
    """Print one row for each metric: its mean, its interval and its n."""
    sizes = f"{scores.n:,} rows, {scores.n_prompts:,} prompts"
    Console(highlight=False).print(f"{sizes}; protocol {settings.protocol}, {settings.list_length} ranks")
    rows = []
    for name, (mean, low, high, n) in scores.intervals.items():
        ends = TOO_FEW if low is None else f"{low:.4f} to {high:.4f}"
        rows.append((name, f"{mean:.4f}", ends, f"{n:,}"))
    TextTable(("metric", "mean", "95 % interval", "n"), rows).print()
