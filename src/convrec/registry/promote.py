"""Versions are compared and decided on, the aliases moved, and the reasons recorded; and versions listed."""

import tempfile
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import mlflow

from convrec.project.config.params import Params
from convrec.project.paths import Paths
from convrec.project.text import plain
from convrec.registry.decisions import ALREADY, REFUSED, Decision, Gate, decision_markdown
from convrec.registry.experiment import recorded_result
from convrec.registry.model_card import TEST_TAG, TRAINING_TAG, with_verdict
from convrec.registry.moves import (
    STATUS_TAG,
    ChampionChanged,
    State,
    not_undone,
    promote_version,
    read_state,
    rolled_back,
    utc_now,
)
from convrec.registry.policy import POLICY_FILE, decide, load_policy
from convrec.registry.tracking import COMMIT_TAG, connect, git_state, user_name
from convrec.registry.versions import all_versions, download_version, find_version, model_name, read_aliases

COLUMNS = ("version", "aliases", "created", "ndcg", "data", "parent", "status")  # of `list_versions`
DECISION_TAG, NUMBER_TAG = "promotion.decision", "promotion.number"
_MAX_REASON = 500  # characters of a reason in a tag


def promote(
    params: Params,
    paths: Paths,
    version: str | None = None,
    *,
    by: str | None = None,
    approve: bool = False,
    again: bool = False,
    dry_run: bool = False,
) -> Decision:
    """Decide on a version, by default the challenger, and make it the champion if every gate holds.

    `approve` is a person's approval. `again` permits a version that was rolled back. The decision is recorded on the
    version, and in its run as `promotion/decision-N.json` and `.md`. With `dry_run`, nothing is written or moved.

    Raises `InputError` if policy, data or version is missing or invalid, or a version is of another catalog.
    """
    policy = load_policy(params.common.cutoffs, paths.root / POLICY_FILE)
    connect(paths.root)
    client = mlflow.MlflowClient()
    challenger = find_version(client, version)
    name, state, who = str(challenger.version), read_state(client), plain(by or user_name())
    if state.champion == name:
        return Decision(ALREADY, f"Version {name} is the champion already.", name, name)
    from convrec.registry.measure import compare_versions  # noqa: PLC0415  (imports torch)

    versions = [name] if state.champion is None else [name, state.champion]
    with tempfile.TemporaryDirectory() as folder:
        uris = {number: f"models:/{model_name()}/{number}" for number in versions}
        sides = [(number, download_version(uri, Path(folder, number))) for number, uri in uris.items()]
        comparison = compare_versions(params, paths, policy, sides)
    if policy.experiment is not None and state.champion is not None:
        comparison = replace(comparison, experiment=recorded_result(challenger, state.champion))
    lost, approval = rolled_back(state.moves, name), {"by": who, "at": utc_now()} if approve else None
    why = f"rolled back at {lost.at} by {lost.by}{': ' if lost.reason else ''}{lost.reason}" if lost else None
    model = "challenger" if "challenger" in challenger.aliases else f"models:/{model_name()}/{name}"
    decision = decide(policy, comparison, why, again, approval, model, challenger.tags.get(TRAINING_TAG, ""))
    return decision if dry_run else _carry_out(client, state, decision, who)


def _carry_out(client: mlflow.MlflowClient, state: State, decision: Decision, by: str) -> Decision:
    """Move the champion if the decision is a promotion, and record the decision; return it with number and signature.

    The whole decision goes to the version's run, a summary to its tags.
    """
    git, version = git_state(), client.get_model_version(model_name(), decision.challenger)
    commit = git.get(COMMIT_TAG, "") + (", with changes" if git.get("git_dirty") == "true" else "")
    number = int(version.tags.get(NUMBER_TAG, "0")) + 1
    decision = replace(decision, number=number, by=by, at=utc_now(), commit=commit)
    artifact = f"promotion/decision-{number}"
    if decision.promoted:
        try:
            promote_version(client, state, decision.challenger, by, decision.reason, f"{artifact}.json")
        except ChampionChanged as error:
            if read_state(client).champion == decision.challenger:  # promoted by another process, which records it
                return Decision(ALREADY, "Another process promoted it.", decision.challenger, decision.challenger)
            gate = Gate("champion", None, "unchanged since the comparison", False, str(error))
            decision = replace(decision, status=REFUSED, reason=str(error), gates=(*decision.gates, gate))
    card = with_verdict(version.description or "", decision.reason)
    with not_undone(f"the promotion of version {decision.challenger}") if decision.promoted else nullcontext():
        if version.run_id:
            client.log_text(version.run_id, decision_markdown(decision), f"{artifact}.md")
            client.log_text(version.run_id, card, "model_card.md")
            client.log_dict(version.run_id, decision.to_json(), f"{artifact}.json")
        told = f"{decision.reason[:_MAX_REASON]} ({plain(by)}, {decision.at[:16].replace('T', ' ')} UTC)"
        for tag, value in ((NUMBER_TAG, str(number)), (DECISION_TAG, told), (STATUS_TAG, decision.status)):
            client.set_model_version_tag(model_name(), version.version, tag, value)
        client.update_model_version(model_name(), version.version, description=card)
    return decision


def list_versions() -> list[dict[str, str]]:
    """Return one row for each version, newest first; its NDCG is that of the system as it is served."""
    connect()
    client = mlflow.MlflowClient()
    aliases, prefix, rows = read_aliases(client), f"{TEST_TAG}ndcg_at_", []
    for version in all_versions(client):
        number, tags = str(version.version), version.tags
        created = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC)
        ndcg = [f"{value} @{name.removeprefix(prefix)}" for name, value in tags.items() if name.startswith(prefix)]
        row = {
            "version": number,
            "aliases": ", ".join(sorted(alias for alias, holder in aliases.items() if holder == number)),
            "created": f"{created:%Y-%m-%d %H:%M} UTC",
            "ndcg": ndcg[0] if ndcg else "",
            "data": tags.get("data_version", ""),
            "parent": tags.get("parent", ""),
            "status": tags.get(STATUS_TAG, "not decided"),
        }
        rows.append(row)
    return rows
