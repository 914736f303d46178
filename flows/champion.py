"""The flows about the champion: its score on current data, its replacement and return, and the online experiment.

They run as deployments. The commands `convrec evaluate`, `promote`, `rollback` and `experiment` do the same at once.
"""

from typing import Any

from prefect import flow
from prefect.flow_runs import pause_flow_run
from prefect.input import RunInput
from pydantic import Field

from convrec.evaluation.headline import with_interval
from convrec.evaluation.metrics import metric_label
from convrec.project.config.params import load_params
from convrec.project.paths import Paths
from convrec.project.table import TextTable
from convrec.registry.decisions import AWAITING, decision_markdown, headline
from convrec.registry.promote import check_promotion
from convrec.registry.tracking import run_address
from convrec.registry.versions import compared_versions
from flows.pipeline import bring_up_to_date, refuse_early, run_name
from tasks.artifacts import show_link, show_table
from tasks.champion import decide_promotion, evaluate_versions, roll_back, watch_experiment


@flow(name="evaluate", flow_run_name=run_name("evaluate"))
def evaluate() -> str:
    """Score the champion and the challenger on the current test split; return the table.

    The data stage is brought up to date first. Nothing is trained, and no alias changes.
    """
    refuse_early(compared_versions)
    bring_up_to_date("evaluate", stages=["data"])
    results = evaluate_versions()
    widest = max(load_params().common.cutoffs)
    metrics = (f"ndcg_at_{widest}", f"recall_at_{widest}", "in_catalog", "seen")
    rows = [[name, *(with_interval(result["metrics"][one]) for one in metrics)] for name, result in results.items()]
    table = TextTable(["version", *map(metric_label, metrics)], rows).markdown()
    first = next(iter(results.values()))
    table = f"Test split: {first['n_rows']} rows, {first['n_prompts']} prompts, constrained lists\n\n{table}"
    show_table("evaluation", table, "Champion and challenger on the current test split")
    for name, result in results.items():
        if address := run_address(result["run_id"]):
            show_link(f"evaluation-{name.split(',')[0]}", address, f"The run of the {name} in MLflow")
    return table


class Approval(RunInput):
    """The form that a person fills in when resuming the run in Prefect's UI."""

    approve: bool = Field(default=False, description="promote the version")
    name: str = Field(min_length=1, description="who decides")


@flow(name="promote", flow_run_name=run_name("promote"))
def promote(version: str | None = None, again: bool = False, approval_hours: float = 48.0) -> str:
    """Decide on a version, by default the challenger, by promotion.yaml; return the decision in one line.

    The data stage is brought up to date first, so that both versions are compared on the current test split. If the
    policy requires approval, the run pauses for up to `approval_hours`. After that the run fails, but the version still
    awaits approval (`convrec promote --approve`). `again` permits a version that was rolled back.
    """
    refuse_early(lambda: check_promotion(load_params(), Paths(), version))
    bring_up_to_date("promote", stages=["data"])
    decision = decide_promotion(version, again)
    if decision.status == AWAITING:
        said: Any = pause_flow_run(
            wait_for_input=Approval.with_initial_data(description=decision_markdown(decision)),
            timeout=int(approval_hours * 3600),
        )
        if said.approve:
            decision = decide_promotion(decision.challenger, again, approved_by=said.name)
    return headline(decision)


@flow(name="rollback", flow_run_name=run_name("rollback"))
def rollback(by: str | None = None, reason: str = "") -> str:
    """Make the previous champion the champion again; return a message."""
    return roll_back(by, reason)


@flow(name="experiment", flow_run_name=run_name("experiment"))
def experiment(feedback: str | None = None) -> str:
    """Return the result of the running experiment in one line; it ends if the challenger is significantly worse.

    `feedback` is the URL of the feedback database (default: CONVREC_FEEDBACK_URL).
    """
    return watch_experiment(feedback)
