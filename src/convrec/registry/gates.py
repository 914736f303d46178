"""Decides whether a challenger becomes the champion, from scores and limits. Pure functions."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from convrec.evaluation.comparison import Gain
from convrec.registry.policy import Baselines, Policy, Slices
from convrec.serving.arms import BETTER

PROMOTED, REFUSED, AWAITING = "promoted", "refused", "awaiting approval"
ALREADY = "champion already"
NO_CHAMPION = "no champion"
LATENCY = "latency_p95_seconds"
_GAINS = ("gains", "baselines")  # fields of a comparison


@dataclass(frozen=True)
class Side:
    """One of two compared versions: its mean scores, coverage and latency (seconds) on the current data."""

    version: str
    checkpoint_md5: str
    means: dict[str, float]


@dataclass(frozen=True)
class SliceChange:
    """A metric's means for both versions on one slice of the rows; `champion` is None without a champion."""

    kind: str
    name: str
    n_rows: int
    challenger: float
    champion: float | None

    @property
    def drop(self) -> float:
        """The champion's mean minus the challenger's; 0 without a champion."""
        return 0.0 if self.champion is None else self.champion - self.challenger


@dataclass(frozen=True)
class Comparison:
    """The scores of both versions on the same rows.

    `gains` holds the challenger's paired gains over the champion by metric name in the policy; it is empty without a
    champion. `baselines` holds its gains over each baseline of the policy. `data` holds the MD5 of the files,
    `settings` everything else that the scores depend on. `experiment` holds the result of the challenger's ended
    experiment against this champion; it is None without that gate or such an experiment.
    """

    challenger: Side
    champion: Side | None
    gains: dict[str, Gain]
    slices: list[SliceChange]
    n_rows: int
    n_prompts: int
    data: dict[str, str]
    settings: dict[str, Any]
    baselines: dict[str, Gain] = field(default_factory=dict)  # decisions of earlier releases have none
    experiment: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        gains = {kind: {name: gain._asdict() for name, gain in getattr(self, kind).items()} for kind in _GAINS}
        return {**asdict(self), **gains}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Comparison":
        """Return the comparison that `to_json` was called on."""
        sides = {side: Side(**value[side]) if value[side] else None for side in ("challenger", "champion")}
        gains = {kind: {name: Gain(**gain) for name, gain in value.get(kind, {}).items()} for kind in _GAINS}
        slices = [SliceChange(**change) for change in value["slices"]]
        known = {name: part for name, part in value.items() if name != "replay"}  # a gate of earlier releases
        return cls(**{**known, **sides, **gains, "slices": slices})


@dataclass(frozen=True)
class Gate:
    """One condition: its figure (None if there is nothing to measure), the limit, and whether it holds."""

    name: str
    figure: float | None
    limit: str
    passed: bool
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}" if self.figure is None else f"{self.name} {self.figure:.4f} ({self.limit})"


@dataclass(frozen=True)
class Decision:
    """The decision about a challenger: status and reason, every gate with its figure, and what was compared."""

    status: str
    reason: str
    challenger: str
    champion: str | None
    gates: tuple[Gate, ...] = ()
    comparison: Comparison | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    approval: dict[str, str] | None = None
    number: int = 0  # counts the version's decisions from 1; 0 if not recorded
    by: str = ""
    at: str = ""
    commit: str = ""

    @property
    def promoted(self) -> bool:
        return self.status == PROMOTED

    def to_json(self) -> dict[str, Any]:
        """Return the decision as JSON values."""
        comparison = None if self.comparison is None else self.comparison.to_json()
        return {**asdict(self), "gates": [asdict(gate) for gate in self.gates], "comparison": comparison}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Decision":
        """Return the decision that `to_json` was called on."""
        comparison = Comparison.from_json(value["comparison"]) if value["comparison"] else None
        gates = tuple(Gate(**gate) for gate in value["gates"])
        return cls(**{**value, "gates": gates, "comparison": comparison})


def _above(name: str, figure: float, limit: float, detail: str = "") -> Gate:
    return Gate(name, figure, f"above {limit:g}", figure > limit, detail)


def _at_least(name: str, figure: float, limit: float, detail: str = "") -> Gate:
    return Gate(name, figure, f"at least {limit:g}", figure >= limit, detail)


def _at_most(name: str, figure: float, limit: float, detail: str = "") -> Gate:
    return Gate(name, figure, f"at most {limit:g}", figure <= limit, detail)


def _without_champion(name: str, limit: str) -> Gate:
    return Gate(name, None, limit, True, NO_CHAMPION)


def _gain_gates(policy: Policy, comparison: Comparison) -> list[Gate]:
    if _is_replaced(policy, "gains"):
        return []
    gates = []
    for name, wanted in policy.gains.items():
        lower, p = f"{name} gain, lower end", f"{name} gain, p"
        if comparison.champion is None:
            gates.append(_without_champion(lower, f"above {wanted.min:g}"))
            gates.append(_without_champion(p, f"at most {wanted.max_p:g}"))
            continue
        gain = comparison.gains[name]
        gates += [_above(lower, gain.low, wanted.min, _spread(gain)), _at_most(p, gain.p, wanted.max_p)]
    return gates


def _is_replaced(policy: Policy, name: str) -> bool:
    """Return whether an online experiment decides in place of a gate."""
    return policy.experiment is not None and name in policy.experiment.replaces


def _spread(gain: Gain) -> str:
    return f"{gain.mean:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}] over {gain.n} rows"


def _baseline_gates(rule: Baselines, comparison: Comparison) -> list[Gate]:
    """Return the gate for the gain over the strongest baseline, the one with the smallest gain."""
    if not rule.names:
        return []
    best = min(comparison.baselines, key=lambda name: comparison.baselines[name].mean)
    gain = comparison.baselines[best]
    name = f"{rule.metric} over the strongest baseline, lower end"
    return [_at_least(name, gain.low, rule.min, f"{best}: {_spread(gain)}")]


def _experiment_gates(comparison: Comparison) -> list[Gate]:
    """Return the gate for the verdict of the challenger's experiment against this champion; it fails without one."""
    name, limit, found = "online experiment", BETTER, comparison.experiment
    if comparison.champion is None:
        return [_without_champion(name, limit)]
    if found is None:
        missing = f"no ended experiment against version {comparison.champion.version}; `convrec experiment start`"
        return [Gate(name, None, limit, False, missing)]
    return [Gate(name, found["mean"], limit, found["verdict"] == BETTER, _told(found))]


def _told(found: Mapping[str, Any]) -> str:
    """Return the result of an experiment in one line; its bounds are None until there are enough users."""
    interval = "" if found["low"] is None else f" [{found['low']:+.3f}, {found['high']:+.3f}]"
    size = f"{found['answers'] or 0:,} answers of {found['users'] or 0:,} users"
    return f"{found['experiment']}: {found['verdict']}{interval}, {size}"


def _ratio_gate(comparison: Comparison, metric: str, gate: Callable[..., Gate], limit: float) -> Gate:
    """Return the gate for the ratio of the challenger's figure to the champion's; 0 / 0 counts as 1."""
    name = f"{metric}, ratio to the champion's"
    own = comparison.challenger.means[metric]
    if comparison.champion is None:
        return _without_champion(name, gate(name, own, limit).limit)
    other = comparison.champion.means[metric]
    value = own / other if other else (1.0 if own == other else float("inf"))
    return gate(name, value, limit, f"{own:.4f} over {other:.4f}")


def _guard_gates(policy: Policy, comparison: Comparison) -> list[Gate]:
    rails, means, gates = policy.guard_rails, comparison.challenger.means, []
    for name, least in (("in_catalog", rails.in_catalog), ("format", rails.format)):
        if least is not None:
            gates.append(_at_least(name, means[name], least.min))
    if rails.coverage is not None:
        if rails.coverage.min is not None:
            gates.append(_at_least("coverage", means["coverage"], rails.coverage.min))
        if rails.coverage.min_ratio is not None:
            gates.append(_ratio_gate(comparison, "coverage", _at_least, rails.coverage.min_ratio))
    if rails.latency_p95_seconds is not None:
        if rails.latency_p95_seconds.max is not None:
            gates.append(_at_most(LATENCY, means[LATENCY], rails.latency_p95_seconds.max))
        if rails.latency_p95_seconds.max_ratio is not None:
            gates.append(_ratio_gate(comparison, LATENCY, _at_most, rails.latency_p95_seconds.max_ratio))
    if rails.slices is not None and not _is_replaced(policy, "slices"):
        gates.append(_slice_gate(rails.slices, comparison))
    return gates


def _slice_gate(rail: Slices, comparison: Comparison) -> Gate:
    name = f"{rail.metric}, largest fall of a slice"
    limit = f"at most {rail.max_drop:g}"
    if comparison.champion is None:
        return _without_champion(name, limit)
    looked_at = [change for change in comparison.slices if change.n_rows >= rail.min_rows]
    if not looked_at:
        return Gate(name, None, limit, True, f"no slice has {rail.min_rows} rows")
    worst = max(looked_at, key=lambda change: change.drop)
    where = f"{worst.kind} = {worst.name}, {worst.n_rows} rows: {worst.champion:.4f} to {worst.challenger:.4f}"
    return _at_most(name, worst.drop, rail.max_drop, where)


def _rolled_back_gate(rolled_back: str | None, again: bool) -> list[Gate]:
    if rolled_back is None:
        return []
    detail = f"{rolled_back}; --again overrides this"
    return [Gate("rolled_back", None, "not rolled back before", again, detail)]


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
    gates = [*_gain_gates(policy, comparison), *_baseline_gates(policy.baselines, comparison)]
    gates += _guard_gates(policy, comparison)
    gates += _experiment_gates(comparison) if policy.experiment is not None else []
    gates += _rolled_back_gate(rolled_back, again)
    failed = [gate for gate in gates if not gate.passed]
    champion = comparison.champion
    versus = f"version {champion.version}" if champion else "there was no champion"
    status = PROMOTED
    if failed:
        status, reason = REFUSED, "; ".join(map(str, failed))
    elif champion is None:
        reason = "there was no champion; all other gates hold"
    elif comparison.experiment is not None and _is_replaced(policy, "gains"):
        reason = f"better than {versus} in an online experiment: {_told(comparison.experiment)}"
    else:
        gained = (
            f"{name} {gain.mean:+.4f}, p {gain.p:.4f}"
            for name, gain in comparison.gains.items()
            if name in policy.gains
        )
        reason = f"better than {versus} on the same {comparison.n_rows} test rows: {', '.join(gained)}"
    if not failed and policy.approval == "required":
        gates.append(_approval_gate(approval))
        status = PROMOTED if approval else AWAITING
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


def _approval_gate(approval: Mapping[str, str] | None) -> Gate:
    detail = f"given by {approval['by']}" if approval else "not given yet"
    return Gate("approval", None, "required", approval is not None, detail)


def refuse(decision: Decision, gate: Gate) -> Decision:
    """Return the decision as a refusal because of `gate`, which becomes its reason."""
    others = [other for other in decision.gates if other.name != gate.name]
    return Decision(**{**vars(decision), "status": REFUSED, "reason": str(gate), "gates": (*others, gate)})


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def gate_rows(decision: Decision) -> list[tuple[str, str, str, str, str]]:
    """Return name, figure, limit, outcome and detail of each gate as texts."""
    return [
        (
            gate.name,
            "-" if gate.figure is None else f"{gate.figure:.4f}",
            gate.limit,
            "holds" if gate.passed else "FAILS",
            gate.detail,
        )
        for gate in decision.gates
    ]


def headline(decision: Decision) -> str:
    """Return the decision in one line."""
    if decision.status == ALREADY:
        return f"version {decision.challenger} is the champion already"
    return f"version {decision.challenger} {_VERBS[decision.status]}: {decision.reason}"


_VERBS = {PROMOTED: "was promoted", REFUSED: "was refused", AWAITING: "awaits approval"}


def decision_markdown(decision: Decision) -> str:
    """Return the decision as Markdown: the result, a table of the gates, and what was compared."""
    lines = [f"## Promotion: {headline(decision)}", ""]
    if decision.gates:
        lines += ["| gate | figure | limit | outcome | detail |", "|---|---:|---|---|---|"]
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in gate_rows(decision)]
        lines.append("")
    against = "no champion" if decision.champion is None else f"champion: version {decision.champion}"
    facts = [f"challenger: version {decision.challenger}", against]
    if decision.comparison is not None:
        found = decision.comparison
        lists = f"{found.settings.get('lists', '')} lists".strip()
        facts.append(f"{found.n_rows} test rows, {found.n_prompts} prompts, {lists}")
        facts += [f"{name} MD5 {md5}" for name, md5 in found.data.items()]
    said = decision.approval
    if said:
        facts.append(f"{'refused' if 'refused' in said else 'approved'} by {said['by']} at {said['at']}")
    facts += [f"decided by {decision.by} at {decision.at}"] if decision.by else []
    facts += [f"commit {decision.commit}"] if decision.commit else []
    return "\n".join([*lines, *(f"- {fact}" for fact in facts), ""])


def same_comparison(
    one: Comparison, challenger: str, champion: str | None, data: Mapping[str, str], settings: Mapping[str, Any]
) -> bool:
    """Return whether a comparison has these versions, data and settings, so that it can be reused."""
    versions = (one.challenger.version, one.champion.version if one.champion else None)
    return versions == (challenger, champion) and (one.data, one.settings) == (dict(data), dict(settings))
