"""Tasks about the champion: register a version, and promote it by promotion.yaml."""

from prefect import task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.logging import get_run_logger

from convrec.project.config.params import load_params
from convrec.project.paths import Paths
from convrec.registry import promote, versions
from convrec.registry.decisions import Decision, decision_markdown, headline
from convrec.registry.tracking import shown_address
from tasks.command import RETRIES
from tasks.server import gpu_slot


@task(task_run_name="register", **RETRIES)
def register_checkpoint(parent_run: str | None) -> str:
    """Register the current checkpoint as the challenger, once; return its version."""
    return str(versions.register(load_params(), Paths(), parent_run).version)


@task(task_run_name="decide on {version}", timeout_seconds=12 * 3600, **RETRIES)
def decide_promotion(version: str) -> Decision:
    """Decide on a version by promotion.yaml, carry the decision out, and show its gates."""
    with gpu_slot():
        get_run_logger().info("comparing version %s with the champion", version)
        decision = promote.promote(load_params(), Paths(), version)
    create_markdown_artifact(decision_markdown(decision), key="promotion", description="The promotion's gates")
    if address := shown_address(f"models/{versions.model_name()}/versions/{version}"):
        create_link_artifact(address, link_text=f"Version {version} in MLflow", key="version")
    get_run_logger().info("%s", headline(decision))
    return decision
