"""Registering the trained checkpoint, and moving the champion by promotion.yaml, or back."""

from typing import Any

from prefect import task
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from convrec.config import load_params
from convrec.errors import InputError
from convrec.paths import Paths
from tasks.artifacts import show_table


def _may_help(_task: object, _run: object, state: State) -> bool:
    """Return whether another try may help: with whatever a server or a store says, but not with bad input."""
    return not isinstance(state.result(raise_on_failure=False), InputError)


_PATIENT: dict[str, Any] = {"retries": 2, "retry_delay_seconds": 30, "retry_condition_fn": _may_help}


@task(task_run_name="register", **_PATIENT)
def register_checkpoint(parent_run: str | None) -> str:
    """Register the present checkpoint as the challenger, once; return its version."""
    from convrec import registry

    return str(registry.register(load_params(), Paths(), parent_run).version)


@task(task_run_name="decide on {version}", **_PATIENT)
def decide_promotion(version: str | None, again: bool = False, approved_by: str | None = None) -> dict[str, Any]:
    """Carry out what promotion.yaml says of a version, and show it gate by gate.

    Returns `version`, `aliases`, `headline`, `markdown`, and whether it is `awaiting` a person's word.
    """
    from convrec.promotion.gates import AWAITING, decision_markdown, headline
    from convrec.promotion.promote import promote
    from convrec.registry import aliases_of

    decision = promote(load_params(), Paths(), version, again=again, approve=approved_by is not None, by=approved_by)
    show_table("promotion", decision_markdown(decision), "The promotion's gates")
    get_run_logger().info("%s", headline(decision))
    return {
        "version": decision.challenger,
        "aliases": aliases_of(decision.challenger),
        "headline": headline(decision),
        "markdown": decision_markdown(decision),
        "awaiting": decision.status == AWAITING,
    }


@task(task_run_name="refuse {version}")
def reject_version(version: str, by: str, reason: str) -> str:
    """Write down a person's refusal; return the decision in one line."""
    from convrec.promotion.gates import decision_markdown, headline
    from convrec.promotion.promote import reject

    decision = reject(Paths(), version, by=by, reason=reason)
    show_table("promotion", decision_markdown(decision), "The promotion's gates")
    get_run_logger().info("%s", headline(decision))
    return headline(decision)


@task(task_run_name="roll back")
def roll_back(to: str | None, by: str | None, reason: str) -> str:
    """Move the champion back; return what was done."""
    from convrec.promotion.promote import rollback

    move = rollback(Paths(), to, by=by, reason=reason)
    told = f"Version {move.to_version} is the champion again; version {move.from_version} was rolled back"
    show_table("rollback", f"{told} by {move.by}. {move.reason}\n", "A move of the champion")
    get_run_logger().info("%s", told)
    return told
