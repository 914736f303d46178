"""The summary of a pipeline run: its decision, the machine, the gates, the time of each stage, and the ablation.

MLflow and Prefect show it as Markdown; the run's report begins with it.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from convrec.demonstrations.calls import CallStore
from convrec.evaluation.headline import Fact, spread
from convrec.evaluation.metrics import metric_label
from convrec.project.atomic import write_text
from convrec.project.machine import describe_machine
from convrec.project.paths import Path, Paths
from convrec.project.results import read_json
from convrec.project.table import TextTable
from flows.console import duration


@dataclass(frozen=True)
class Summary:
    """The facts and tables of a pipeline run."""

    facts: Sequence[Fact]
    tables: Sequence[TextTable]

    def markdown(self, results: str = "") -> str:
        """Return the summary as Markdown, with the table `results` of the evaluation, if given, after the facts."""
        facts = (f"- {fact.label}: **{fact.value}**{f' ({fact.note})' if fact.note else ''}" for fact in self.facts)
        return "\n".join([*facts, "", *([results] if results else []), *(table.markdown() for table in self.tables)])


def summarize(
    seconds: Mapping[str, float], all_stages: Sequence[str], decision: Mapping[str, Any] | None, paths: Paths
) -> Summary:
    """Return the summary of a run that ends now.

    `seconds` has the wall-clock time of each stage that ran; the others of `all_stages` were up to date. `decision` is
    the result of `decide_promotion`, None for a run that registered nothing.
    """
    total = sum(seconds.values())
    facts = [*_decision_facts(decision), Fact("Finished", f"{datetime.now():%Y-%m-%d %H:%M}")]
    facts.append(Fact("Time of the stages", duration(total) if total else "none ran", describe_machine()))
    facts += _teacher_facts(paths.calls)
    times = [(stage, duration(seconds[stage]) if stage in seconds else "up to date") for stage in all_stages]
    tables = [TextTable(("stage", "time"), times, "Time by stage", left=2)]
    if decision and decision["gates"]:
        header = ("gate", "figure", "limit", "outcome", "detail")
        tables.insert(0, TextTable(header, decision["gates"], "Gates of the promotion", left=5))
    return Summary(facts, [*tables, *_ablation_tables(paths)])


def _decision_facts(decision: Mapping[str, Any] | None) -> list[Fact]:
    if not decision:
        return []
    facts = [Fact(f"Version {decision['version']}", decision["status"], decision["reason"])]
    if not decision["gates"]:  # it is the champion already, so nothing was compared
        return facts
    if decision["champion"] is None:
        facts.append(Fact("Champion before this run", "none"))
    for metric, gain in decision["gains"].items():
        label = f"{metric_label(metric)} over the champion, version {decision['champion']}"
        facts.append(Fact(label, f"{gain['mean']:+.3f} {spread(gain)}", f"on the same {gain['n']:,} test rows"))
    if decision["latency"] is not None:
        facts.append(Fact("Latency", f"{decision['latency']:.2f} s", "95th percentile, one conversation at a time"))
    return facts


def _teacher_facts(calls: Path) -> list[Fact]:
    """Return the cost of all calls of the LLM teacher in this folder, if there were any."""
    if not calls.exists():
        return []
    with closing(CallStore(calls)) as store:
        spent = store.spent()
    if not spent.calls:
        return []
    tokens = spent.prompt_tokens + spent.completion_tokens
    note = f"{spent.calls:,} calls, {tokens:,} tokens, all runs in this folder"
    return [Fact("Cost of the LLM teacher", f"{spent.cost:.2f}", note)]


def _ablation_tables(paths: Paths) -> list[TextTable]:
    """Return the table of `convrec ablate-demonstrations`, if it was measured on the present demonstrations."""
    from convrec.registry.tracking import file_md5  # noqa: PLC0415  (imports mlflow)

    demonstrations = paths.demonstration("train")
    if not (paths.ablation.is_file() and demonstrations.is_file()):
        return []
    found = read_json(paths.ablation)
    if found["demonstrations_md5"] != file_md5(demonstrations):
        return []
    metric, rows = metric_label(found["metric"]), []
    for name, groups in found["variants"].items():
        row = [name]
        for entry in groups.values():
            row += [f"{entry['lists']['mean']:.3f}", f"{entry['sft']['mean']:.3f} {spread(entry['sft'])}"]
        rows.append(row)
    header = ["demonstrations", *(f"{group}: {part}" for group in found["groups"] for part in ("lists", "SFT"))]
    return [TextTable(header, rows, f"{metric} after each demonstration step, {found['seeds']} seeds")]


def write_run_report(summary: Summary, paths: Paths) -> None:
    """Write the report of a run: the report of the stage `report`, with the summary of the run at its top."""
    from convrec.evaluation.report import add_run  # noqa: PLC0415  (imports plotly)

    write_text(paths.run_report, add_run(paths.report.read_text(encoding="utf-8"), summary.facts, summary.tables))
