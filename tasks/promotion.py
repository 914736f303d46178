"""Tasks that register the trained checkpoint, compare versions, promote by promotion.yaml, and roll back."""

from typing import TYPE_CHECKING, Any

from prefect import task
from prefect.logging import get_run_logger

from convrec.pipeline.commands.registry import EXIT_NOT_PROMOTED
from convrec.project.config.params import load_params
from convrec.project.errors import outside_cause
from convrec.project.paths import Paths
from tasks.artifacts import show_link, show_table
from tasks.command import RETRIES, ask_convrec

if TYPE_CHECKING:
    from convrec.registry.decisions import Comparison

_TIMEOUT_HOURS = 12.0


@task(task_run_name="register", **RETRIES)
def register_checkpoint(parent_run: str | None) -> str:
    """Register the current checkpoint as the challenger, once; return its version.

    Raises `Unavailable` if the registry or its store is down, `NoSpace` or `InputError` if it cannot write.
    """
    from convrec.registry import versions as registry

    try:
        return str(registry.register(load_params(), Paths(), parent_run).version)
    except Exception as error:
        away = outside_cause(error)
        if away is not None:
            raise away from error
        raise


@task(task_run_name="evaluate champion and challenger", **RETRIES)
def evaluate_versions() -> dict[str, dict[str, Any]]:
    """Return the results of `convrec evaluate` for the champion and its possible replacement, by name.

    Their lists are constrained to the catalog. Raises `InputError` if there is no champion.
    """
    from convrec.registry.versions import compared_versions

    versions = compared_versions()
    chosen = [part for uri in versions.values() for part in ("--model", uri)]
    results = ask_convrec("evaluate", "--split", "test", "--constrained", *chosen, timeout_hours=_TIMEOUT_HOURS)
    return dict(zip(versions, results, strict=True))


@task(task_run_name="decide on {version}", **RETRIES)
def decide_promotion(version: str | None, again: bool = False, approved_by: str | None = None) -> dict[str, Any]:
    """Decide on a version by promotion.yaml, carry the decision out, and show its gates.

    Returns texts: `version`, `status`, `reason`, `champion` (the version compared with, or None), `aliases`,
    `headline`, `markdown` and the rows of the `gates`; the `gains` over the champion by metric with their intervals;
    the `latency` in seconds, None if nothing was measured; and whether the version is `awaiting` approval.
    """
    options = ["--version", version] if version else []
    options += ["--again"] if again else []
    options += ["--approve", "--by", approved_by] if approved_by else []
    (found,) = ask_convrec("promote", *options, timeout_hours=_TIMEOUT_HOURS, success=(0, EXIT_NOT_PROMOTED))
    return _show(found)


def _show(found: dict[str, Any]) -> dict[str, Any]:
    from convrec.registry.decisions import AWAITING, LATENCY, Decision, decision_markdown, gate_rows, headline
    from convrec.registry.tracking import connect, shown_address
    from convrec.registry.versions import MODEL_NAME, aliases_of

    decision = Decision.from_json(found)
    show_table("promotion", decision_markdown(decision), "The promotion's gates")
    address = shown_address(f"models/{MODEL_NAME}/versions/{decision.challenger}")
    if address:
        show_link("version", address, f"Version {decision.challenger} in MLflow")
    get_run_logger().info("%s", headline(decision))
    connect()
    compared = decision.comparison
    return {
        "version": decision.challenger,
        "status": decision.status,
        "reason": decision.reason,
        "champion": decision.champion,
        "gates": gate_rows(decision),
        "gains": _gains_by_metric(compared) if compared else {},
        "latency": compared.challenger.means.get(LATENCY) if compared else None,
        "aliases": aliases_of(decision.challenger),
        "headline": headline(decision),
        "markdown": decision_markdown(decision),
        "awaiting": decision.status == AWAITING,
    }


def _gains_by_metric(compared: "Comparison") -> dict[str, dict[str, float]]:
    return {compared.settings["metrics"][name]: gain._asdict() for name, gain in compared.gains.items()}


@task(task_run_name="refuse {version}", **RETRIES)
def reject_version(version: str, by: str, reason: str) -> str:
    """Record a person's rejection; return the decision in one line."""
    from convrec.registry.promote import reject

    return _show(reject(Paths(), version, by=by, reason=reason).to_json())["headline"]


@task(task_run_name="roll back")
def roll_back(to: str | None, by: str | None, reason: str) -> str:
    """Roll the champion back; return a message."""
    from convrec.registry.promote import rollback

    move = rollback(Paths(), to, by=by, reason=reason)
    message = f"Version {move.to_version} is the champion again; version {move.from_version} was rolled back"
    show_table("rollback", f"{message} by {move.by}. {move.reason}\n", "Rollback of the champion")
    get_run_logger().info("%s", message)
    return message
