"""Registering the trained checkpoint, and promoting it if it beats the champion."""

from prefect import task
from prefect.logging import get_run_logger

from convrec.config import load_params
from convrec.paths import Paths


@task(task_run_name="register and promote")
def register_and_promote(parent_run: str | None) -> tuple[str, list[str], str]:
    """Return the version of the present checkpoint, its aliases, and why it was promoted or not."""
    from convrec import registry

    params, paths = load_params(), Paths()
    metric = f"ndcg_at_{max(params.common.cutoffs)}"
    challenger = registry.register(params, paths, parent_run)
    decision = registry.promote(challenger, metric, registry.champion_score(params, paths, metric))
    get_run_logger().info("version %s: %s", challenger.version, decision.reason)
    return str(challenger.version), registry.aliases_of(challenger.version), decision.reason
