"""The summary of a pipeline run: its decision, the machine, the gates, and the time of each stage.

MLflow and Prefect show it as Markdown; the run's report begins with it.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import NamedTuple

from convrec.demonstrations.calls import CallStore
from convrec.evaluation.headline import Fact, spread
from convrec.evaluation.metrics import metric_label
from convrec.project.atomic import write_text
from convrec.project.machine import describe_machine
from convrec.project.paths import Path, Paths
from convrec.project.table import TextTable
from convrec.registry.decisions import LATENCY, Decision, gate_rows
from flows.console import duration


class Summary(NamedTuple):
    """The facts and tables of a pipeline run."""

    facts: list[Fact]
    tables: list[TextTable]

    def markdown(self, results: str = "") -> str:
        """Return the summary as Markdown, with the table `results` of the evaluation, if given, after the facts."""
        facts = (f"- {fact.label}: **{fact.value}**{f' ({fact.note})' if fact.note else ''}" for fact in self.facts)
        return "\n".join([*facts, "", *([results] if results else []), *(table.markdown() for table in self.tables)])


def summarize(
    seconds: Mapping[str, float], all_stages: Sequence[str], decision: Decision | None, paths: Paths
) -> Summary:
    """Return the summary of a run that ends now.

    `seconds` has the wall-clock time of each stage that ran; the others of `all_stages` were up to date. `decision` is
    None for a run that registered nothing.
    """
    facts, tables = _of_decision(decision) if decision else ([], [])
    facts.append(Fact("Finished", f"{datetime.now():%Y-%m-%d %H:%M}"))
    time = duration(sum(seconds.values())) if seconds else "none ran"
    facts.append(Fact("Time of the stages", time, describe_machine()))
    facts += _of_teacher(paths.calls)
    times = [(stage, duration(seconds[stage]) if stage in seconds else "up to date") for stage in all_stages]
    tables.append(TextTable(("stage", "time"), times, "Time by stage", left=2))
    return Summary(facts, tables)


def _of_decision(decision: Decision) -> tuple[list[Fact], list[TextTable]]:
    facts = [Fact(f"Version {decision.challenger}", decision.status, decision.reason)]
    if not decision.gates:  # it is the champion already, so nothing was compared
        return facts, []
    if decision.champion is None:
        facts.append(Fact("Champion before this run", "none"))
    if (compared := decision.comparison) is not None:
        for name, gain in compared.gains.items():
            label = f"{metric_label(compared.settings['metrics'][name])} over the champion, version {decision.champion}"
            value = f"{gain.mean:+.3f} {spread(gain._asdict())}"
            facts.append(Fact(label, value, f"on the same {gain.n:,} test rows"))
        if (latency := compared.challenger.means.get(LATENCY)) is not None:
            facts.append(Fact("Latency", f"{latency:.2f} s", "95th percentile, one conversation at a time"))
    header = ("gate", "figure", "limit", "outcome", "detail")
    return facts, [TextTable(header, gate_rows(decision), "Gates of the promotion", left=5)]


def _of_teacher(calls: Path) -> list[Fact]:
    """Return the tokens of all calls of the LLM teacher in this folder, if there were any."""
    if not calls.exists():
        return []
    with closing(CallStore(calls)) as store:
        spent = store.spent()
    tokens = f"{spent.prompt_tokens:,} read, {spent.completion_tokens:,} written"
    note = f"{spent.calls:,} calls, all runs in this folder"
    return [Fact("Tokens of the LLM teacher", tokens, note)] if spent.calls else []


def write_run_report(summary: Summary, paths: Paths) -> None:
    """Write the report of a run: the report of the stage `report`, with the summary of the run at its top."""
    from convrec.evaluation.report import add_run  # noqa: PLC0415  (imports plotly)

    write_text(paths.run_report, add_run(paths.report.read_text(encoding="utf-8"), summary.facts, summary.tables))
