"""`convrec promote` and `convrec rollback`: compare, decide, move the aliases, and record the reasons."""

import getpass
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import mlflow
from mlflow.entities.model_registry import ModelVersion

from convrec.project.config.params import Params
from convrec.project.errors import InputError, outside_cause
from convrec.project.paths import TRAINED, Paths
from convrec.registry.decisions import (
    ALREADY,
    AWAITING,
    PROMOTED,
    Comparison,
    Decision,
    Gate,
    decision_markdown,
    headline,
    refuse,
)
from convrec.registry.experiment import recorded_result
from convrec.registry.model_card import CHECKPOINT_TAG, checkpoint_digest, with_decision
from convrec.registry.moves import (
    ChampionChanged,
    Move,
    State,
    promote_version,
    read_state,
    roll_back,
    rolled_back,
    utc_now,
)
from convrec.registry.policy import POLICY_FILE, Policy, decide, load_policy
from convrec.registry.tracking import COMMIT_TAG, connect, git_state
from convrec.registry.versions import MODEL_NAME, RegisteredModel, download_version, find_version, version_settings

logger = logging.getLogger(__name__)

STATUS_TAG, DECISION_TAG = "promotion.status", "promotion.decision"
_FOLDER = "promotion"  # artifact folder of the decisions in the version's run
_MAX_REASON = 500  # characters of a reason in a tag


def promote(
    params: Params,
    paths: Paths,
    version: str | None = None,
    *,
    by: str | None = None,
    approve: bool = False,
    again: bool = False,
    fresh: bool = False,
    dry_run: bool = False,
) -> Decision:
    """Decide on a version, by default the challenger, and make it the champion if every gate holds.

    If versions, data and settings are those of the version's last decision, its figures are reused, unless `fresh`. A
    person's rejection then also holds, even with `fresh`. `approve` is a person's approval. `again` permits a version
    that was rolled back. The decision is recorded on the version, and in its run as `promotion/decision-N.json` and
    `.md`. With `dry_run`, nothing is written or moved.

    Raises `InputError` if policy, data or version is missing or invalid.
    """
    policy, client, challenger = _open(params, paths, version)
    name, state = str(challenger.version), read_state(client)
    if state.champion == name:
        return Decision(ALREADY, "", name, name)
    who = by or user_name()
    last = _standing(client, params, paths, policy, challenger, state)
    if last is not None and last.rejected and not approve:
        return last
    kept = None if fresh else last
    comparison = kept.comparison if kept is not None else None
    if comparison is None:
        comparison = _compare(client, params, paths, policy, challenger, state)
    if policy.experiment is not None and state.champion is not None:
        comparison = replace(comparison, experiment=recorded_result(challenger, state.champion))
    number, challenger = _number(challenger), client.get_model_version(MODEL_NAME, name)
    if _number(challenger) != number and not approve:  # decided on during the comparison
        newest = last_decision(client, challenger)
        if newest is not None and newest.rejected:
            return newest
    lost, approval = rolled_back(state.moves, name), {"by": who, "at": utc_now()} if approve else None
    why = f"rolled back at {lost.at} by {lost.by}{': ' if lost.reason else ''}{lost.reason}" if lost else None
    decision = decide(policy, comparison, why, again, approval)
    if dry_run:
        return decision
    if kept is not None and not decision.promoted and _has_same_gates(decision, kept):
        return kept
    return _carry_out(client, challenger, state, _signed(decision, challenger, who))


def check_promotion(params: Params, paths: Paths, version: str | None = None) -> None:
    """Raise the errors of `promote` about policy and version, without measuring anything."""
    _open(params, paths, version)


def _open(params: Params, paths: Paths, version: str | None) -> tuple[Policy, mlflow.MlflowClient, ModelVersion]:
    policy = load_policy(params.common.cutoffs, paths.root / POLICY_FILE)
    connect(paths.root)
    client = mlflow.MlflowClient()
    return policy, client, find_version(client, version)


def reject(paths: Paths, version: str | None = None, *, by: str, reason: str = "") -> Decision:
    """Record and return a person's rejection of a version that awaits approval; the champion stays.

    Raises `InputError` for a version that does not await approval.
    """
    connect(paths.root)
    client = mlflow.MlflowClient()
    challenger = find_version(client, version)
    last = last_decision(client, challenger)
    if last is None or last.status != AWAITING:
        status = challenger.tags.get(STATUS_TAG, "no decision yet")
        raise InputError(f"--reject: version {challenger.version} does not await approval ({status})")
    said = {"by": by, "at": utc_now(), "refused": reason}
    message = f"refused by {by}{': ' if reason else ''}{reason}"
    refused = replace(refuse(last, Gate("approval", None, "required", False, message)), approval=said)
    decision = _signed(refused, challenger, by)
    _record(client, challenger, decision)
    return decision


def rollback(paths: Paths, to: str | None = None, *, by: str | None = None, reason: str = "") -> Move:
    """Return to the previous champion, or to the earlier one `to`; return the move.

    The version that was rolled back is not promoted again without `again`. Raises `InputError` if there
    is no version to return to.
    """
    connect(paths.root)
    client = mlflow.MlflowClient()
    move = roll_back(client, by or user_name(), reason, to)
    with _not_undone(f"the rollback is done, but could not be noted on version {move.from_version}"):
        lost = find_version(client, move.from_version)
        client.set_model_version_tag(MODEL_NAME, lost.version, STATUS_TAG, "rolled back")
        client.set_model_version_tag(MODEL_NAME, move.to_version, STATUS_TAG, PROMOTED)
        tell_card(client, lost, f"{move.at} rolled back to version {move.to_version} by {move.by}: {move.reason}")
    return move


def last_decision(client: mlflow.MlflowClient, version: ModelVersion) -> Decision | None:
    """Return the last recorded decision on a version; None if there is none or its artifact is not readable.

    Raises `Unavailable` if the artifact store is down, and `InputError` if this user may not read it, because the
    decision may be a person's rejection.
    """
    summary = _short(version)
    if not summary.get("artifact") or not version.run_id:
        return None
    try:
        return Decision.from_json(mlflow.artifacts.load_dict(f"runs:/{version.run_id}/{summary['artifact']}"))
    except Exception as error:  # object stores' libraries have their own exceptions
        away = outside_cause(error)
        if away is not None:
            raise away from None
        logger.warning(
            "%s of version %s could not be read (%s)", summary["artifact"], version.version, str(error)[:120]
        )
        return None


def _short(version: ModelVersion) -> dict[str, Any]:
    """Return the summary of the last decision from the version's tag, empty without a decision."""
    return json.loads(version.tags.get(DECISION_TAG, "{}"))


def _number(version: ModelVersion) -> int:
    """Return the number of the version's last decision; 0 without a decision."""
    return int(_short(version).get("number", 0))


def user_name() -> str:
    """Return the name of the user of this process, for records."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "unknown"


def _has_same_gates(one: Decision, other: Decision) -> bool:
    return (one.status, one.gates, one.policy) == (other.status, other.gates, other.policy)


def _signed(decision: Decision, version: ModelVersion, by: str) -> Decision:
    git = git_state()
    commit = git.get(COMMIT_TAG, "") + (", with changes" if git.get("git_dirty") == "true" else "")
    return replace(decision, number=_number(version) + 1, by=by, at=utc_now(), commit=commit)


def _standing(
    client: mlflow.MlflowClient, params: Params, paths: Paths, policy: Policy, version: ModelVersion, state: State
) -> Decision | None:
    """Return the last decision if it still applies: same versions, data and settings."""
    from convrec.registry import measure  # noqa: PLC0415  (imports torch)

    present = measure.present_data(paths), measure.comparison_settings(params, policy)
    last = last_decision(client, version)
    if last is None or last.comparison is None:
        return None
    found = last.comparison
    versions = found.challenger.version, found.champion.version if found.champion else None
    same = versions == (str(version.version), state.champion) and (found.data, found.settings) == present
    return last if same else None


def _compare(
    client: mlflow.MlflowClient, params: Params, paths: Paths, policy: Policy, challenger: ModelVersion, state: State
) -> Comparison:
    from convrec.registry import measure  # noqa: PLC0415  (imports torch)

    champion = None if state.champion is None else _contestant(find_version(client, state.champion), paths)
    return measure.compare_versions(params, paths, policy, _contestant(challenger, paths), champion)


def _contestant(version: ModelVersion, paths: Paths) -> Any:
    from convrec.registry.measure import Contestant  # noqa: PLC0415  (imports torch)

    uri, digest = f"models:/{MODEL_NAME}/{version.version}", version.tags.get(CHECKPOINT_TAG)
    for stage in TRAINED[1:]:
        if digest and paths.model(stage).is_dir() and checkpoint_digest(paths.model(stage)) == digest:
            own = RegisteredModel(paths.model(stage), paths.catalog, version_settings(uri))
            return Contestant(str(version.version), digest, own)
    logger.info("downloading version %s from the registry", version.version)
    model = download_version(uri)
    return Contestant(str(version.version), checkpoint_digest(model.checkpoint), model)


def _carry_out(client: mlflow.MlflowClient, challenger: ModelVersion, state: State, decision: Decision) -> Decision:
    """Move the champion if the decision is a promotion, and record the decision."""
    if not decision.promoted:
        _record(client, challenger, decision)
        return decision
    try:
        promote_version(client, state, decision.challenger, decision.by, decision.reason, f"{_artifact(decision)}.json")
    except ChampionChanged as error:
        if read_state(client).champion == decision.challenger:  # promoted by another process, which records it
            return Decision(ALREADY, "", decision.challenger, decision.challenger)
        gate = Gate("champion", None, "unchanged since the comparison", False, str(error))
        present = client.get_model_version(MODEL_NAME, decision.challenger)  # it may have new decisions
        decision = _signed(replace(refuse(decision, gate), reason=str(error)), present, decision.by)
        _record(client, present, decision)
        return decision
    with _not_undone(f"version {challenger.version} is the champion, but the decision could not be recorded"):
        _record(client, challenger, decision)
    return decision


@contextmanager
def _not_undone(message: str) -> Iterator[None]:
    """Log any error: the champion has moved, and a missing record must not undo that."""
    try:
        yield
    except Exception as error:
        logger.error("%s (%s)", message, str(error)[:200])


def _artifact(decision: Decision) -> str:
    return f"{_FOLDER}/decision-{decision.number}"


def _record(client: mlflow.MlflowClient, version: ModelVersion, decision: Decision) -> None:
    """Write the whole decision to the version's run, and a summary to the version's tags."""
    artifact = ""
    if version.run_id:
        artifact = f"{_artifact(decision)}.json"
        client.log_text(version.run_id, decision_markdown(decision), f"{_artifact(decision)}.md")
        client.log_dict(version.run_id, decision.to_json(), artifact)
    short = {
        "number": decision.number,
        "status": decision.status,
        "reason": decision.reason[:_MAX_REASON],
        "champion": decision.champion,
        "by": decision.by,
        "at": decision.at,
        "artifact": artifact,
    }
    client.set_model_version_tag(MODEL_NAME, version.version, DECISION_TAG, json.dumps(short))
    client.set_model_version_tag(MODEL_NAME, version.version, STATUS_TAG, decision.status)
    tell_card(client, version, f"{decision.at} {headline(decision)[:_MAX_REASON]} (by {decision.by})")


def tell_card(client: mlflow.MlflowClient, version: ModelVersion, line: str) -> None:
    """Add a line to the decisions in a version's model card."""
    present = client.get_model_version(MODEL_NAME, version.version)
    card = with_decision(present.description or "", line)
    client.update_model_version(MODEL_NAME, version.version, description=card)
    if version.run_id:
        client.log_text(version.run_id, card, "model_card.md")
