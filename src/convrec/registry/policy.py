"""promotion.yaml as a frozen model, and the decision that it leads to. Imports neither mlflow nor torch."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from convrec.evaluation.metrics import METRICS, RANKED
from convrec.project.config.base import Section, validated
from convrec.project.errors import InputError
from convrec.project.yaml import read_yaml
from convrec.registry.decisions import AWAITING, PROMOTED, REFUSED, Comparison, Decision, Gate
from convrec.registry.gates import (
    Baselines,
    ExperimentRule,
    GainRule,
    GuardRails,
    Rule,
    describe_experiment,
)

POLICY_FILE = Path("promotion.yaml")


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
    better = f"better than version {comparison.champion.version}"
    if comparison.experiment is not None and "gains" in policy.replaced:
        return f"{better} in an online experiment: {describe_experiment(comparison.experiment)}"
    gains = {name: comparison.gains[name] for name in policy.gains}
    gained = ", ".join(f"{name} {gain.mean:+.4f}, p {gain.p:.4f}" for name, gain in gains.items())
    return f"{better} on the same {comparison.n_rows} test rows: {gained}"


def resolve_metric(name: str, cutoffs: Sequence[int], field: str) -> str:
    """Return the score table's column of a metric; a metric without its cutoff gets the largest one.

    Raises `InputError` for a metric that does not exist with these cutoffs.
    """
    if name in RANKED:
        return f"{name}_at_{max(cutoffs)}"
    match = re.fullmatch(rf"({'|'.join(RANKED)})_at_(\d{{1,9}})", name)
    if (name in METRICS and METRICS[name].function) or (match and int(match[2]) in cutoffs):
        return name
    if match:
        raise InputError(
            f"{field} = {name!r}: common.cutoffs = {sorted(cutoffs)} has no {match[2]}; write "
            f"{match[1]}_at_{max(cutoffs)}, or {match[1]} for the largest"
        )
    raise InputError(f"{field} = {name!r}: not a known metric; give {', '.join(RANKED)} (or NAME_at_K), or mrr")


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
