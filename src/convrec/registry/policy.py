"""promotion.yaml as a frozen model with its gates, and the decision that it leads to. Imports neither mlflow nor torch.

A gate is one class: its fields are the limits in promotion.yaml, its method `gates` checks them against a comparison.
One line in `Policy` or `GuardRails` adds it. The name of that field is the name that `gates` gets.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from convrec.evaluation.comparison import Gain
from convrec.evaluation.headline import TOO_FEW, bounds, excludes_zero
from convrec.evaluation.metrics import METRICS, RANKED
from convrec.evaluation.systems import BASELINES
from convrec.project.config.base import Section, validated
from convrec.project.errors import InputError
from convrec.project.yaml import read_yaml
from convrec.registry.decisions import AWAITING, NO_CHAMPION, PROMOTED, REFUSED, Comparison, Decision, Gate
from convrec.service.arms import BETTER

POLICY_FILE = Path("promotion.yaml")
_MOST_TIMES = 100  # as many rows as there are, of those that `rows_to_decide` asks for
_HOLDS = {"above": operator.gt, "at least": operator.ge, "at most": operator.le}


class Rule(Section):
    """The limits of a gate."""

    def gates(self, name: str, found: Comparison) -> list[Gate]:
        """Return a gate for each limit; `name` is that of the field, or of the metric in `gains`."""
        raise NotImplementedError


def _gain_gate(name: str, gain: Gain | None, kind: str, limit: float, detail: str = "") -> Gate:
    """Return the gate of a gain's lower end; it fails if there are too few persons for one."""
    if gain is not None and gain.low is None:
        return Gate(name, None, f"{kind} {limit:g}", False, f"not enough data: {TOO_FEW}, {gain.n} rows")
    gate = _gate(name, None if gain is None else gain.low, kind, limit, detail)
    if gain is None or gate.passed or (enough := rows_to_decide(gain, limit)) is None:
        return gate
    return replace(gate, note=f"too few test rows ({gain.n:,}); about {enough:,} would decide")


def rows_to_decide(gain: Gain, limit: float) -> int | None:
    """Return about how many rows would make a gain's 95 % interval exclude the limit, to two digits.

    The interval's width falls with the square root of the rows: n (half width / distance to the limit)². None if the
    interval excludes the limit already or has no bounds, and where no number within reason would decide.
    """
    if gain.low is None or gain.high is None or not gain.low <= limit <= gain.high or gain.mean == limit:
        return None
    half = gain.mean - gain.low if gain.mean > limit else gain.high - gain.mean
    rows = gain.n * (half / (gain.mean - limit)) ** 2
    if rows > _MOST_TIMES * gain.n:
        return None
    digits = max(0, math.floor(math.log10(rows)) - 1)
    return math.ceil(round(rows / 10**digits, 6)) * 10**digits  # rounded: 14.000000000000002 is 14


def _gate(name: str, figure: float | None, kind: str, limit: float, detail: str = "") -> Gate:
    """Return the gate of a figure; without one there is no champion to compare with, and it holds."""
    if figure is None:
        return Gate(name, None, f"{kind} {limit:g}", True, NO_CHAMPION)
    return Gate(name, figure, f"{kind} {limit:g}", _HOLDS[kind](figure, limit), detail)


def _spread(gain: Gain) -> str:
    return f"{gain.mean:+.4f} {bounds(gain._asdict(), '+.4f')} over {gain.n} rows"


class GainRule(Rule):
    """The required confidence of a gain over the champion."""

    min: float = Field(description="the lower end of the gain's 95 % interval must be above this")
    max_p: float = Field(gt=0, le=1, description="highest p-value of the paired permutation test")

    def gates(self, name: str, found: Comparison) -> list[Gate]:
        gain = None if found.champion is None else found.gains[name]
        p, detail = (None, "") if gain is None else (gain.p, _spread(gain))
        return [
            _gain_gate(f"{name} gain, lower end", gain, "above", self.min, detail),
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
        return [_gain_gate(title, gain, "at least", self.min, f"{best}: {_spread(gain)}")]


class Limits(Rule):
    """Limits of one figure of the challenger; those with `_ratio` are relative to the champion's figure."""

    min: float | None = Field(default=None, ge=0)
    max: float | None = Field(default=None, gt=0)
    min_ratio: float | None = Field(default=None, gt=0)
    max_ratio: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _is_a_limit(self) -> Self:
        if all(limit is None for _, limit in self):
            raise ValueError("no limit; give min, max, min_ratio or max_ratio, or leave the guard-rail out")
        return self

    def gates(self, name: str, found: Comparison) -> list[Gate]:
        own, gates = found.challenger.means[name], []
        for field, limit in self:
            kind = "at least" if field.startswith("min") else "at most"
            if limit is not None and not field.endswith("_ratio"):
                gates.append(_gate(name, own, kind, limit))
            elif limit is not None:
                ratio, detail = None, ""
                if found.champion is not None:
                    other = found.champion.means[name]
                    of_zero = 1.0 if own == other else float("inf")
                    ratio, detail = own / other if other else of_zero, f"{own:.4f} over {other:.4f}"
                gates.append(_gate(f"{name}, ratio to the champion's", ratio, kind, limit, detail))
        return gates


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
    verdict = "; ".join([result["verdict"], *result.get("problems", [])])  # none in those of earlier releases
    return f"{result['experiment']}: {verdict}{interval}, {size}"


class GuardRails(Section):
    """Limits for other properties than the gains; those that are left out are not checked."""

    in_catalog: Limits | None = None
    format: Limits | None = None
    coverage: Limits | None = None
    latency_p95_seconds: Limits | None = None
    slices: Slices | None = None


class Policy(Section):
    """All fields of promotion.yaml; the gates are checked in this order."""

    lists: Literal["constrained", "free"] = Field(description="the kind of lists to compare")
    gains: dict[str, GainRule] = Field(min_length=1)
    baselines: Baselines = Baselines()
    guard_rails: GuardRails
    experiment: ExperimentRule | None = None
    approval: Literal["none", "required"]

    def metrics(self) -> list[str]:
        """Return the names of the metrics that are compared row by row."""
        slices = self.guard_rails.slices
        return [*self.gains, *([slices.metric] if slices else [])]

    @property
    def replaced(self) -> list[str]:
        """The gates that an online experiment decides in place of."""
        return [] if self.experiment is None else list(self.experiment.replaces)

    def gates(self, comparison: Comparison) -> list[Gate]:
        """Return every gate of the policy, checked against a comparison."""
        rules: dict[str, Any] = {} if "gains" in self.replaced else dict(self.gains)
        for name, value in self:
            rules |= dict(value) if isinstance(value, GuardRails) else {name: value}
        checked = {name: rule for name, rule in rules.items() if isinstance(rule, Rule) and name not in self.replaced}
        return [gate for name, rule in checked.items() for gate in rule.gates(name, comparison)]


def decide(
    policy: Policy,
    comparison: Comparison,
    rolled_back: str | None = None,
    again: bool = False,
    approval: Mapping[str, str] | None = None,
) -> Decision:
    """Return the decision with every gate: the challenger is promoted, refused, or awaits approval.

    `rolled_back` describes an earlier rollback of the version, which blocks it unless `again` is true. `approval` says
    who approved it and when, if the policy requires approval.
    """
    gates = policy.gates(comparison)
    if rolled_back is not None:
        detail = f"{rolled_back}; --again overrides this"
        gates.append(Gate("rolled_back", None, "not rolled back before", again, detail))
    failed = [gate for gate in gates if not gate.passed]
    status, reason = (REFUSED, "; ".join(map(str, failed))) if failed else (PROMOTED, _reason(policy, comparison))
    if not failed and policy.approval == "required":
        detail = f"given by {approval['by']}" if approval else "not given yet"
        gates.append(Gate("approval", None, "required", approval is not None, detail))
        status = PROMOTED if approval else AWAITING
    champion = comparison.champion
    return Decision(
        status,
        reason,
        comparison.challenger.version,
        champion.version if champion else None,
        tuple(gates),
        comparison,
        policy.model_dump(),
        dict(approval) if approval else None,
    )


def _reason(policy: Policy, comparison: Comparison) -> str:
    """Return why a version that passes every gate is promoted."""
    if comparison.champion is None:
        return "there was no champion; all other gates hold"
    if comparison.experiment is not None and "gains" in policy.replaced:
        result = describe_experiment(comparison.experiment)
        return f"better than version {comparison.champion.version} in an online experiment: {result}"
    gains = {name: comparison.gains[name] for name in policy.gains}
    is_better = all(excludes_zero(gain._asdict()) > 0 for gain in gains.values())
    better = f"{'better than' if is_better else 'within the allowed loss of'} version {comparison.champion.version}"
    gained = ", ".join(f"{name} {gain.mean:+.4f}, p {gain.p:.4f}" for name, gain in gains.items())
    return f"{better} on the same {comparison.n_rows} test rows: {gained}"


def resolve_metric(name: str, cutoffs: Sequence[int], field: str) -> str:
    """Return the score table's column of a metric; a metric without its cutoff gets the largest one.

    Raises `InputError` for a metric that does not exist with these cutoffs.
    """
    full = f"{name}_at_{max(cutoffs)}" if name in RANKED else name
    ranked = {f"{metric}_at_{cutoff}" for metric in RANKED for cutoff in cutoffs}
    if full not in ranked and not (full in METRICS and METRICS[full].function):
        others = ", ".join(metric for metric, own in METRICS.items() if own.function and metric not in RANKED)
        raise InputError(
            f"{field} = {name!r}: not a known metric; give {', '.join(RANKED)} (at the widest cutoff), "
            f"NAME_at_K with K from common.cutoffs = {sorted(cutoffs)}, or {others}"
        )
    return full


def parse_policy(raw: dict[str, Any], source: str, cutoffs: Sequence[int]) -> Policy:
    """Return the validated policy; its metrics must exist with these cutoffs.

    Raises `InputError` with one line for each mistake: field, value and remedy.
    """
    policy = validated(Policy, raw, source, "docs/promotion.md")
    for name in policy.gains:
        resolve_metric(name, cutoffs, f"{source}: gains")
    resolve_metric(policy.baselines.metric, cutoffs, f"{source}: baselines.metric")
    if policy.guard_rails.slices is not None:
        resolve_metric(policy.guard_rails.slices.metric, cutoffs, f"{source}: guard_rails.slices.metric")
    return policy


def load_policy(cutoffs: Sequence[int], path: Path = POLICY_FILE) -> Policy:
    """Return the policy of a promotion.yaml; raises `InputError` if the file is missing or invalid."""
    return parse_policy(read_yaml(path), str(path), cutoffs)
