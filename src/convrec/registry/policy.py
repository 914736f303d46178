"""promotion.yaml as a frozen model with its gates, and the decision that it leads to. Imports neither mlflow nor torch.

A gate is one class: its fields are the limits in promotion.yaml, its method `gates` checks them against a comparison.
One line in `Policy` or `GuardRails` adds it. The name of that field is the name that `gates` gets.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from convrec.evaluation.comparison import Gain
from convrec.evaluation.headline import TOO_FEW, bounds, excludes_zero
from convrec.evaluation.metrics import METRICS, RANKED, metric_label
from convrec.evaluation.systems import BASELINES
from convrec.project.config.base import Section, validated
from convrec.project.errors import InputError
from convrec.project.yaml import read_yaml
from convrec.registry.decisions import AWAITING, NO_CHAMPION, PROMOTED, REFUSED, Comparison, Decision, Gate
from convrec.service.arms import BETTER

POLICY_FILE = Path("promotion.yaml")
_MOST_TIMES = 100  # as many rows as there are, of those that `rows_to_decide` asks for
_NOTHING_SHOWS = "nothing shows that it is better than"
_HOLDS = {"above": operator.gt, "at least": operator.ge, "at most": operator.le}


class Rule(Section):
    """The limits of a gate."""

    def gates(self, name: str, found: Comparison) -> list[Gate]:
        """Return a gate for each limit; `name` is that of the field, or of the metric in `gains`."""
        raise NotImplementedError


def _gain_gate(metric: str, other: str, gain: Gain | None, kind: str, limit: float, detail: str = "") -> Gate:
    """Return the gate of a gain's lower end over `other`; it fails if there are too few persons for one."""
    name = f"{metric_label(metric)} gain over {other}, at least"
    if gain is not None and (gain.low is None or gain.high is None):
        return Gate(name, None, f"{kind} {limit:g}", False, f"there are {TOO_FEW} in the {gain.n} test rows")
    gate = _gate(name, None if gain is None else gain.low, kind, limit, detail)
    if gain is None or gate.passed:
        return gate
    is_below, enough = (gain.high or 0) < limit, rows_to_decide(gain, limit)
    why = f"it is worse than {other}" if is_below else f"{_NOTHING_SHOWS} {other}"
    why = f"its gain over {other} {'is' if is_below else 'may be'} below {limit:g}" if limit else why
    return replace(gate, why=why, note=f"about {enough:,} test rows would decide" if enough else "")


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
        lower = _gain_gate(name, "the champion", gain, "above", self.min, detail)
        chance = _gate(f"chance of such a gain in {metric_label(name)} between equals (p)", p, "at most", self.max_p)
        return [lower, chance if chance.passed else replace(chance, why=lower.why, note=lower.note)]


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
        return [_gain_gate(self.metric, BASELINES[best], gain, "at least", self.min, _spread(gain))]


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
                gates.append(_gate(f"{name} relative to the champion's", ratio, kind, limit, detail))
        return gates


class Slices(Rule):
    """Maximum drop of a metric on any slice of the rows."""

    metric: str
    max_drop: float = Field(ge=0)
    min_rows: int = Field(ge=1, description="slices with fewer rows are ignored as too uncertain")

    def gates(self, name: str, found: Comparison) -> list[Gate]:
        title = f"largest {metric_label(self.metric)} loss of a slice"
        large = [change for change in found.slices if change.n_rows >= self.min_rows]
        if found.champion is None:
            return [_gate(title, None, "at most", self.max_drop)]
        if not large:
            return [Gate(title, None, f"at most {self.max_drop:g}", True, f"no slice has {self.min_rows} rows")]
        worst = max(large, key=lambda change: change.drop)
        where = f"{worst.kind} = {worst.name}, {worst.n_rows} rows: {worst.champion:.4f} to {worst.challenger:.4f}"
        gate = _gate(title, worst.drop, "at most", self.max_drop, where)
        why = f"{metric_label(self.metric)} falls by {worst.drop:.3f} in the slice {worst.kind} = {worst.name}"
        return [gate if gate.passed else replace(gate, why=why)]


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
            missing = f"no experiment against version {found.champion.version} has ended; `convrec experiment start`"
            return [Gate(title, None, BETTER, False, missing)]
        why = "" if result["verdict"] == BETTER else f"the online experiment says: {result['verdict']}"
        return [Gate(title, result["mean"], BETTER, not why, describe_experiment(result), why=why)]


def describe_experiment(result: dict[str, Any]) -> str:
    """Return the result of an experiment in one line; its bounds are None until there are enough users."""
    interval = "" if result["low"] is None else f" [{result['low']:+.3f}, {result['high']:+.3f}]"
    size = f"{result['answers'] or 0:,} answers of {result['users'] or 0:,} users"
    verdict = "; ".join([result["verdict"], *result["problems"]])
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
    approval: dict[str, str] | None = None,
    model: str = "challenger",
    training: str = "",
) -> Decision:
    """Return the decision with every gate: the challenger is promoted, refused, or awaits approval.

    `rolled_back` describes an earlier rollback of the version, which blocks it unless `again` is true. `approval` says
    who approved it and when, if required. `model` is what `--model` takes; `training` says what Rank-GRPO changed.
    """
    gates = policy.gates(comparison)
    if rolled_back is not None:
        detail = f"it was {rolled_back}; --again overrides this"
        gates.append(Gate("earlier rollback", None, "none", again, detail))
    failed = [gate for gate in gates if not gate.passed]
    status = REFUSED if failed else PROMOTED
    if not failed and policy.approval == "required":
        detail = f"given by {approval['by']}" if approval else "not given yet"
        gates.append(Gate("approval", None, "required", approval is not None, detail))
        status = PROMOTED if approval else AWAITING
    reason = f"{verdict(policy, comparison, status, failed, model)} {training}".rstrip()
    versions = comparison.challenger.version, comparison.champion.version if comparison.champion else None
    return Decision(status, reason, *versions, tuple(gates), comparison, policy.model_dump(), approval)


def verdict(policy: Policy, found: Comparison, status: str, failed: Sequence[Gate], model: str) -> str:
    """Return a decision in plain words: how the version compares, what was decided and why, and what to do next."""
    version, standing = found.challenger.version, _standing(found)
    told = f"On {found.n_rows:,} test rows, version {version} is {standing}. It" if standing else f"Version {version}"
    if status == AWAITING:
        return f"{told} awaits a person's approval: `convrec promote --version {version} --approve --by NAME`."
    if status == PROMOTED:
        how = "" if "better than the champion" in standing else ", within the loss that promotion.yaml allows"
        if found.experiment is not None and "gains" in policy.replaced:
            how = f": users preferred it in the online experiment {found.experiment['experiment']}"
        return f"{told} was promoted{': there was no champion' if found.champion is None else how}."
    whys = ", and ".join(dict.fromkeys(map(str, failed))).replace(f", and {_NOTHING_SHOWS}", " or")
    todo = f"You can serve it (`--model {model}`)" if found.champion is None else "Keep the champion"
    if all(gate.note for gate in failed):  # of the numbers of rows, the largest
        todo += f", or collect more: {max((gate.note for gate in failed), key=lambda note: (len(note), note))}"
    return f"{told} was not promoted, because {whys}. {todo}."


def _standing(found: Comparison) -> str:
    """Return what the challenger differs from, and from what not; empty where nothing can be compared."""
    lowest = sorted(found.gains.values(), key=lambda gain: gain.low or 0)[:1]
    gains = {f"the champion (version {found.champion.version})": gain for gain in lowest if found.champion}
    order = sorted(found.baselines, key=lambda name: found.baselines[name].mean)
    gains |= {f"the best classical method ({BASELINES[name]})": found.baselines[name] for name in order[:1]}
    if "popularity" in order[1:] and excludes_zero(found.baselines[order[0]]._asdict()) < 1:
        gains["popularity"] = found.baselines["popularity"]
    if any(gain.low is None for gain in gains.values()):
        return ""
    words = {0: "not clearly different from", 1: "better than", -1: "worse than"}
    groups = {sign: [one for one, gain in gains.items() if excludes_zero(gain._asdict()) == sign] for sign in words}
    return ", ".join(f"{words[sign]} {' and '.join(others)}" for sign, others in groups.items() if others)


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
