"""promotion.yaml as a frozen model: the conditions for a promotion. Imports neither mlflow nor torch."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from convrec.config.base import Section, Share
from convrec.config.validation import validated
from convrec.errors import InputError
from convrec.evaluation.systems import Baseline
from convrec.files.yaml import read_yaml

POLICY_FILE = Path("promotion.yaml")
_RANKED = ("ndcg", "recall", "hit_rate")  # metrics that take a cutoff
_Ratio = Annotated[float, Field(gt=0)]


class GainRule(Section):
    """The required confidence of a gain over the champion."""

    min: float = Field(description="the lower end of the gain's 95 % interval must be above this")
    max_p: float = Field(gt=0, le=1, description="highest p-value of the paired permutation test")


class Baselines(Section):
    """Baselines: every version, including the first, must be no worse than the best of them on the same rows."""

    names: list[Literal[Baseline, "all"]] = Field(
        default=["all"], description="all: every baseline that the data allow; empty: none"
    )
    metric: str = "ndcg"
    min: float = Field(default=0.0, description="the lower end of the difference's 95 % interval must be at least this")


class Least(Section):
    """A minimum share."""

    min: Share


class Coverage(Section):
    """Minimum coverage of the catalog, as a share and relative to the champion's coverage."""

    min: Share | None = None
    min_ratio: _Ratio | None = None

    @model_validator(mode="after")
    def _is_a_limit(self) -> "Coverage":
        if self.min is None and self.min_ratio is None:
            raise ValueError("neither min nor min_ratio; give one, or leave the guard-rail out")
        return self


class Latency(Section):
    """Maximum latency, in seconds and relative to the champion's latency."""

    max: _Ratio | None = None
    max_ratio: _Ratio | None = None

    @model_validator(mode="after")
    def _is_a_limit(self) -> "Latency":
        if self.max is None and self.max_ratio is None:
            raise ValueError("neither max nor max_ratio; give one, or leave the guard-rail out")
        return self


class Slices(Section):
    """Maximum drop of a metric on any slice of the rows."""

    metric: str
    max_drop: float = Field(ge=0)
    min_rows: int = Field(ge=1, description="slices with fewer rows are ignored as too uncertain")


class ExperimentRule(Section):
    """An online experiment must have found the version better than the champion (`convrec experiment`)."""

    replaces: list[Literal["gains", "slices"]] = Field(
        default=[], description="gates on the test rows that are not checked, because the users' answers decide"
    )


class GuardRails(Section):
    """Limits for other properties than the gains; those that are left out are not checked."""

    in_catalog: Least | None = None
    format: Least | None = None
    coverage: Coverage | None = None
    latency_p95_seconds: Latency | None = None
    slices: Slices | None = None


class Policy(Section):
    """All fields of promotion.yaml."""

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


def resolve_metric(name: str, cutoffs: Sequence[int], field: str) -> str:
    """Return the score table's column of a metric; a metric without its cutoff gets the largest one.

    Raises `InputError` for a metric that does not exist with these cutoffs.
    """
    if name in _RANKED:
        return f"{name}_at_{max(cutoffs)}"
    match = re.fullmatch(rf"({'|'.join(_RANKED)})_at_(\d{{1,9}})", name)
    if name == "mrr" or (match and int(match[2]) in cutoffs):
        return name
    if match:
        raise InputError(
            f"{field} = {name!r}: common.cutoffs = {sorted(cutoffs)} has no {match[2]}; write "
            f"{match[1]}_at_{max(cutoffs)}, or {match[1]} for the largest"
        )
    raise InputError(f"{field} = {name!r}: not a known metric; give {', '.join(_RANKED)} (or NAME_at_K), or mrr")


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
