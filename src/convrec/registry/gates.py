"""The gates of a promotion. Imports neither mlflow nor torch.

A gate is one class: its fields are the limits in promotion.yaml, its method `gates` checks them against a comparison.
One line in `GuardRails` adds it. The name of that field is the name that `gates` gets.
"""

import operator
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from convrec.evaluation.comparison import Gain
from convrec.evaluation.systems import BASELINES
from convrec.project.config.base import Positive, Section, Share
from convrec.registry.decisions import Comparison, Gate
from convrec.service.arms import BETTER

NO_CHAMPION = "no champion"
_HOLDS = {"above": operator.gt, "at least": operator.ge, "at most": operator.le}


class Rule(Section):
    """The limits of a gate."""

    def gates(self, name: str, found: Comparison) -> list[Gate]:
        """Return a gate for each limit; `name` is that of the field, or of the metric in `gains`."""
        raise NotImplementedError


def _gate(name: str, figure: float | None, kind: str, limit: float, detail: str = "") -> Gate:
    """Return the gate of a figure; without one there is no champion to compare with, and it holds."""
    if figure is None:
        return Gate(name, None, f"{kind} {limit:g}", True, NO_CHAMPION)
    return Gate(name, figure, f"{kind} {limit:g}", _HOLDS[kind](figure, limit), detail)


def _spread(gain: Gain) -> str:
    return f"{gain.mean:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}] over {gain.n} rows"


class GainRule(Rule):
    """The required confidence of a gain over the champion."""

    min: float = Field(description="the lower end of the gain's 95 % interval must be above this")
    max_p: float = Field(gt=0, le=1, description="highest p-value of the paired permutation test")

    def gates(self, name: str, found: Comparison) -> list[Gate]:
        gain = None if found.champion is None else found.gains[name]
        low, p, detail = (None, None, "") if gain is None else (gain.low, gain.p, _spread(gain))
        return [
            _gate(f"{name} gain, lower end", low, "above", self.min, detail),
            _gate(f"{name} gain, p", p, "at most", self.max_p),
        ]


class Baselines(Rule):
    """Baselines: every version, including the first, must be no worse than the best of them on the same rows."""

    names: list[Literal["all", *BASELINES]] = Field(  # type: ignore[valid-type]
        default=["all"], description="all: every baseline that the data allow; empty: none"
    )
    metric: str = "ndcg"
    min: float = Field(default=0.0, description="the lower end of the difference's 95 % interval must be at least this")

    def gates(self, name: str, found: Comparison) -> list[Gate]:
        """Return the gate for the gain over the strongest baseline, the one with the smallest gain."""
        if not self.names:
            return []
        best, gain = min(found.baselines.items(), key=lambda one: one[1].mean)
        title = f"{self.metric} over the strongest baseline, lower end"
        return [_gate(title, gain.low, "at least", self.min, f"{best}: {_spread(gain)}")]


def _ratio_gate(name: str, found: Comparison, kind: str, limit: float) -> Gate:
    """Return the gate for the ratio of the challenger's figure to the champion's; 0 / 0 counts as 1."""
    title = f"{name}, ratio to the champion's"
    if found.champion is None:
        return _gate(title, None, kind, limit)
    own, other = found.challenger.means[name], found.champion.means[name]
    ratio = own / other if other else (1.0 if own == other else float("inf"))
    return _gate(title, ratio, kind, limit, f"{own:.4f} over {other:.4f}")


class Limits(Rule):
    """Limits of one figure of the challenger: `min` or `max`, and with `_ratio` relative to the champion's figure."""

    @model_validator(mode="after")
    def _is_a_limit(self) -> Self:
        if all(limit is None for _, limit in self):
            names = list(type(self).model_fields)
            raise ValueError(f"neither {' nor '.join(names)}; give one, or leave the guard-rail out")
        return self

    def gates(self, name: str, found: Comparison) -> list[Gate]:
        gates = []
        for field, limit in self:
            kind = "at least" if field.startswith("min") else "at most"
            if limit is not None and field.endswith("_ratio"):
                gates.append(_ratio_gate(name, found, kind, limit))
            elif limit is not None:
                gates.append(_gate(name, found.challenger.means[name], kind, limit))
        return gates


class Least(Limits):
    """A minimum share."""

    min: Share


class Coverage(Limits):
    """Minimum coverage of the catalog, as a share and relative to the champion's coverage."""

    min: Share | None = None
    min_ratio: Positive | None = None


class Latency(Limits):
    """Maximum latency, in seconds and relative to the champion's latency."""

    max: Positive | None = None
    max_ratio: Positive | None = None


class Slices(Rule):
    """Maximum drop of a metric on any slice of the rows."""

    metric: str
    max_drop: float = Field(ge=0)
    min_rows: int = Field(ge=1, description="slices with fewer rows are ignored as too uncertain")

    def gates(self, name: str, found: Comparison) -> list[Gate]:
        title = f"{self.metric}, largest fall of a slice"
        large = [change for change in found.slices if change.n_rows >= self.min_rows]
        if found.champion is None:
            return [_gate(title, None, "at most", self.max_drop)]
        if not large:
            return [Gate(title, None, f"at most {self.max_drop:g}", True, f"no slice has {self.min_rows} rows")]
        worst = max(large, key=lambda change: change.drop)
        where = f"{worst.kind} = {worst.name}, {worst.n_rows} rows: {worst.champion:.4f} to {worst.challenger:.4f}"
        return [_gate(title, worst.drop, "at most", self.max_drop, where)]


class GuardRails(Section):
    """Limits for other properties than the gains; those that are left out are not checked."""

    in_catalog: Least | None = None
    format: Least | None = None
    coverage: Coverage | None = None
    latency_p95_seconds: Latency | None = None
    slices: Slices | None = None


class ExperimentRule(Rule):
    """An online experiment must have found the version better than the champion (`convrec experiment`)."""

    replaces: list[Literal["gains", "slices"]] = Field(
        default=[], description="gates on the test rows that are not checked, because the users' answers decide"
    )

    def gates(self, name: str, found: Comparison) -> list[Gate]:
        """Return the gate for the verdict of the experiment against this champion; it fails without one."""
        title, result = "online experiment", found.experiment
        if found.champion is None:
            return [Gate(title, None, BETTER, True, NO_CHAMPION)]
        if result is None:
            missing = f"no ended experiment against version {found.champion.version}; `convrec experiment start`"
            return [Gate(title, None, BETTER, False, missing)]
        return [Gate(title, result["mean"], BETTER, result["verdict"] == BETTER, describe_experiment(result))]


def describe_experiment(result: dict[str, Any]) -> str:
    """Return the result of an experiment in one line; its bounds are None until there are enough users."""
    interval = "" if result["low"] is None else f" [{result['low']:+.3f}, {result['high']:+.3f}]"
    size = f"{result['answers'] or 0:,} answers of {result['users'] or 0:,} users"
    return f"{result['experiment']}: {result['verdict']}{interval}, {size}"
