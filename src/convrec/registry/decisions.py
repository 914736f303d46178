"""What a promotion compared and decided: the figures, the gates, and their texts."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import PlainSerializer, TypeAdapter

from convrec.evaluation.comparison import Gain
from convrec.project.table import TextTable
from convrec.project.text import markdown

PROMOTED, REFUSED, AWAITING = "promoted", "refused", "awaiting approval"
ALREADY = "champion already"
NO_CHAMPION = "no champion"  # the detail of a gate that has nothing to compare with
LATENCY = "latency_p95_seconds"
GATE_COLUMNS = ("gate", "figure", "limit", "outcome", "detail")
_TITLES = {
    "in_catalog": "share of lines that name a catalog item",
    "format": "share of lists in the exact format",
    "coverage": "share of the catalog that is listed",
    LATENCY: "time for an answer in seconds",
}
_Gains = dict[str, Annotated[Gain, PlainSerializer(lambda gain: gain._asdict())]]


@dataclass(frozen=True)
class Side:
    """One of two compared versions: its mean scores, coverage and latency (seconds) on the current data."""

    version: str
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
    gains: _Gains
    slices: list[SliceChange]
    n_rows: int
    n_prompts: int
    data: dict[str, str]
    settings: dict[str, Any]
    baselines: _Gains = field(default_factory=dict)
    experiment: dict[str, Any] | None = None


@dataclass(frozen=True)
class Gate:
    """One condition: its figure (None if there is nothing to measure), the limit, and whether it holds.

    `note` says how many rows would decide where they are too few, `why` in words why it fails.
    """

    name: str
    figure: float | None
    limit: str
    passed: bool
    detail: str = ""
    note: str = ""
    why: str = ""

    def __str__(self) -> str:
        figures = f"the {self.title} is {self.figure:.4g} ({self.limit})" if self.figure is not None else self.detail
        return self.why or figures

    @property
    def title(self) -> str:
        """The name in words, also of a guard rail, whose name is that in promotion.yaml."""
        name, space, rest = self.name.partition(" ")
        return f"{_TITLES.get(name, name)}{space}{rest}"

    @property
    def applies(self) -> bool:
        """Whether there is something to compare with."""
        return self.detail != NO_CHAMPION


@dataclass(frozen=True)
class Decision:
    """The decision about a challenger: status, reason in plain words, every gate with its figure, what was compared."""

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
        return _JSON.dump_python(self, mode="json")


_JSON = TypeAdapter(Decision)


def gate_rows(decision: Decision) -> list[tuple[str, str, str, str, str]]:
    """Return name, figure, limit, outcome and detail, as texts, of each gate that applies."""
    return [
        (
            gate.title,
            "-" if gate.figure is None else f"{gate.figure:.4f}",
            gate.limit,
            "holds" if gate.passed else "FAILS",
            "; ".join(filter(None, [gate.note, gate.detail])),
        )
        for gate in decision.gates
        if gate.applies
    ]


def skipped_gates(decision: Decision) -> str:
    """Return a sentence about the gates that do not apply; empty if all do."""
    names = [gate.title for gate in decision.gates if not gate.applies]
    return f"Not checked, because there is no champion to compare with: {'; '.join(names)}." if names else ""


def decision_markdown(decision: Decision) -> str:
    """Return the decision as Markdown: the result, a table of the gates, and what was compared."""
    lines = [f"## Version {decision.challenger}: {decision.status}", "", markdown(decision.reason), ""]
    if decision.gates:
        lines.append(TextTable(GATE_COLUMNS, gate_rows(decision), left=len(GATE_COLUMNS)).markdown())
        if skipped := skipped_gates(decision):
            lines += [skipped, ""]
    against = "no champion" if decision.champion is None else f"champion: version {decision.champion}"
    facts = [f"challenger: version {decision.challenger}", against]
    if decision.comparison is not None:
        found = decision.comparison
        lists = f"{found.settings.get('lists', '')} lists".strip()
        facts.append(f"{found.n_rows} test rows, {found.n_prompts} prompts, {lists}")
    facts += [f"decided by {decision.by} at {decision.at}"] if decision.by else []
    facts += [f"commit {decision.commit}"] if decision.commit else []
    return "\n".join([*lines, *(f"- {markdown(fact)}" for fact in facts), ""])
