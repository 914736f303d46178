"""The summary of a pipeline run, as Markdown: its decision, the machine, the gates, and the time of each stage."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from convrec.evaluation.headline import spread
from convrec.evaluation.metrics import metric_label
from convrec.project.machine import describe_machine
from convrec.project.table import TextTable
from convrec.project.text import markdown
from convrec.registry.decisions import GATE_COLUMNS, LATENCY, Decision, gate_rows, skipped_gates
from flows.console import duration


def summarize(
    seconds: Mapping[str, float],
    all_stages: Sequence[str],
    decision: Decision | None,
    words: Sequence[str] = (),
    results: str = "",
) -> str:
    """Return the summary of a run that ends now; MLflow and Prefect show it.

    `seconds` has the wall-clock time of each stage that ran; the others of `all_stages` were up to date. `decision` is
    None for a run that registered nothing; `words` are the findings of the evaluation, `results` its table.
    """
    lines = [*(_of_decision(decision) if decision else ()), *words]
    took = duration(sum(seconds.values())) if seconds else "none ran"
    lines += [
        f"Finished: **{datetime.now():%Y-%m-%d %H:%M}**",
        f"Time of the stages: **{took}** ({describe_machine()})",
    ]
    tables = [results] if results else []
    if decision and decision.gates:
        tables.append(TextTable(GATE_COLUMNS, gate_rows(decision), "Gates of the promotion", left=5).markdown())
        tables += [f"{skipped}\n"] if (skipped := skipped_gates(decision)) else []
    times = [(stage, duration(seconds[stage]) if stage in seconds else "up to date") for stage in all_stages]
    tables.append(TextTable(("stage", "time"), times, "Time by stage", left=2).markdown())
    return "\n".join([*(f"- {line}" for line in lines), "", *tables])


def _of_decision(decision: Decision) -> Iterator[str]:
    yield f"**{decision.status.capitalize()}.** {markdown(decision.reason)}"
    if decision.gates and decision.champion is None:  # without gates, it is the champion already
        yield "Champion before this run: **none**"
    if (compared := decision.comparison) is not None:
        for name, gain in compared.gains.items():
            label = f"{metric_label(compared.settings['metrics'][name])} over the champion, version {decision.champion}"
            yield f"{label}: **{gain.mean:+.3f} {spread(gain._asdict())}** (on the same {gain.n:,} test rows)"
        if (latency := compared.challenger.means.get(LATENCY)) is not None:
            yield f"Latency: **{latency:.2f} s** (95th percentile, one conversation at a time)"
