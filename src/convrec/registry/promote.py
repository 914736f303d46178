"""`convrec promote` and `convrec rollback`: compare, decide, move the aliases, and write down why."""

import getpass
import json
import logging
from dataclasses import replace
from typing import Any

import mlflow
from mlflow.entities.model_registry import ModelVersion

from convrec.config.params import Params
from convrec.errors import InputError, outside_cause
from convrec.paths import TRAINED, Paths
from convrec.registry.gates import (
    ALREADY,
    AWAITING,
    PROMOTED,
    Comparison,
    Decision,
    Gate,
    decide,
    decision_markdown,
    headline,
    refuse,
    same_comparison,
)
from convrec.registry.lock import PATIENCE, unlock
from convrec.registry.model_card import CHECKPOINT_TAG, checkpoint_digest, with_decision
from convrec.registry.moves import (
    ROLLED_BACK,
    Move,
    State,
    Superseded,
    promote_version,
    read_state,
    roll_back,
    rollback_target,
    rolled_back,
    utc_now,
)
from convrec.registry.policy import POLICY_FILE, Policy, load_policy
from convrec.registry.versions import MODEL_NAME, RegisteredModel, download_version, find_version, version_settings
from convrec.tracking import COMMIT_TAG, connect, git_state

logger = logging.getLogger(__name__)

STATUS_TAG, DECISION_TAG = "promotion.status", "promotion.decision"
FOLDER = "promotion"  # of the decisions, among the artifacts of the version's run
_MAX_REASON = 500  # characters, in a tag


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
    patience: float = PATIENCE,
) -> Decision:
    """Return the decision on a version, by default the challenger; where every gate holds, it is the champion then.

    The figures of the version's last decision are taken again where versions, data and settings are the same, unless
    `fresh`; a person's no stands then, also with `fresh`. `approve` is a person's yes, `again` outweighs a rollback.
    The decision is written to the version, and to its run as `promotion/decision-N.json` and `.md`. With `dry_run`
    nothing is written or moved. Raises `InputError` where policy, data or version is missing or wrong, or another
    holds the promotion lock.
    """
    policy, client, challenger = _open(params, paths, version)
    name, state = str(challenger.version), read_state(client)
    if state.champion == name:
        return Decision(ALREADY, "", name, name)
    who = by or _user()
    last = _standing(params, paths, policy, name, state, last_decision(client, challenger))
    if last is not None and _is_rejected(last) and not approve:
        return last
    kept = None if fresh else last
    comparison = _comparison(client, params, paths, policy, challenger, state, kept)
    compared, challenger = challenger, client.get_model_version(MODEL_NAME, name)
    no = _refused_since(client, compared, challenger)
    if no is not None and not approve:
        return no
    lost = rolled_back(state.moves, name)
    decision = decide(
        policy,
        comparison,
        rolled_back=_lost_place(challenger, lost),
        again=again,
        approval={"by": who, "at": utc_now()} if approve else None,
    )
    if dry_run:
        return decision
    if kept is not None and not decision.promoted and _is_same(decision, kept):
        return kept
    return _carry_out(client, challenger, state, _signed(decision, challenger, who), patience)


def check_promotion(params: Params, paths: Paths, version: str | None = None) -> None:
    """Raise what `promote` raises of policy and version, before anything is measured."""
    _open(params, paths, version)


def _open(params: Params, paths: Paths, version: str | None) -> tuple[Policy, mlflow.MlflowClient, ModelVersion]:
    policy = load_policy(params.common.cutoffs, paths.root / POLICY_FILE)
    connect(paths.root)
    client = mlflow.MlflowClient()
    return policy, client, find_version(client, version)


def reject(paths: Paths, version: str | None = None, *, by: str, reason: str = "") -> Decision:
    """Return the refusal of a version that awaits approval, which is written down; nothing is moved.

    Raises `InputError` for a version that does not await it.
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
    """Return the move back to the previous champion, or to an earlier one.

    The version that lost its place is tagged, and not promoted again by itself. Raises `InputError` where there is
    nothing to go back to, or another holds the promotion lock.
    """
    connect(paths.root)
    client = mlflow.MlflowClient()
    move = roll_back(client, by or _user(), reason, to)
    try:
        lost = find_version(client, move.from_version)
        client.set_model_version_tag(MODEL_NAME, lost.version, STATUS_TAG, "rolled back")
        client.set_model_version_tag(MODEL_NAME, move.to_version, STATUS_TAG, PROMOTED)
        _tell_card(client, lost, f"{move.at} rolled back to version {move.to_version} by {move.by}: {move.reason}")
    except Exception as error:  # the champion has moved already: that is not to be undone by a note
        logger.error("the rollback is done, but version %s does not tell it (%s)", move.from_version, str(error)[:200])
    return move


def check_rollback(paths: Paths, to: str | None = None) -> None:
    """Raise `InputError` where `rollback` finds nothing to go back to."""
    connect(paths.root)
    client = mlflow.MlflowClient()
    rollback_target(client, read_state(client), to)


def release_lock(paths: Paths) -> str:
    """Remove the promotion lock of a dead process; return what was done."""
    connect(paths.root)
    return unlock(mlflow.MlflowClient())


def last_decision(client: mlflow.MlflowClient, version: ModelVersion) -> Decision | None:
    """Return the last recorded decision on a version; None where there is none, or its artifact cannot be read.

    Raises `Unavailable` where the store of the artifacts is away, `InputError` where this user may not read it: the
    decision may be a person's no.
    """
    summary = _short(version)
    if not summary.get("artifact") or not version.run_id:
        return None
    try:
        return Decision.from_json(mlflow.artifacts.load_dict(f"runs:/{version.run_id}/{summary['artifact']}"))
    except Exception as error:  # an object store's library has exceptions of its own
        away = outside_cause(error)
        if away is not None:
            raise away from None
        logger.warning(
            "%s of version %s could not be read (%s)", summary["artifact"], version.version, str(error)[:120]
        )
        return None


def _short(version: ModelVersion) -> dict[str, Any]:
    """Return the last decision as the version's tag tells it, empty where there is none."""
    return json.loads(version.tags.get(DECISION_TAG, "{}"))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "unknown"


def _is_rejected(decision: Decision) -> bool:
    return decision.approval is not None and "refused" in decision.approval


def _refused_since(client: mlflow.MlflowClient, before: ModelVersion, after: ModelVersion) -> Decision | None:
    """Return a person's no to a version that was written down between two readings of it."""
    if _short(before).get("number") == _short(after).get("number"):
        return None
    newest = last_decision(client, after)
    return newest if newest is not None and _is_rejected(newest) else None


def _is_same(one: Decision, other: Decision) -> bool:
    return (one.status, one.gates, one.policy) == (other.status, other.gates, other.policy)


def _lost_place(challenger: ModelVersion, move: Move | None) -> str | None:
    """Return how the version was rolled back: by the log, or, where that could not be written, by its tag."""
    if move is not None:
        return f"rolled back at {move.at} by {move.by}{': ' if move.reason else ''}{move.reason}"
    return f"rolled back: {challenger.tags[ROLLED_BACK]}" if ROLLED_BACK in challenger.tags else None


def _signed(decision: Decision, version: ModelVersion, by: str) -> Decision:
    git = git_state()
    commit = git.get(COMMIT_TAG, "") + (", with changes" if git.get("git_dirty") == "true" else "")
    return replace(decision, number=_short(version).get("number", 0) + 1, by=by, at=utc_now(), commit=commit)


def _standing(
    params: Params, paths: Paths, policy: Policy, version: str, state: State, last: Decision | None
) -> Decision | None:
    """Return the last decision, if a comparison with the present champion would be the one that it is of."""
    from convrec.registry import measure  # noqa: PLC0415  (imports torch)

    data, settings = measure.present_data(paths), measure.comparison_settings(params, policy)
    if last is None or last.comparison is None:
        return None
    return last if same_comparison(last.comparison, version, state.champion, data, settings) else None


def _comparison(
    client: mlflow.MlflowClient,
    params: Params,
    paths: Paths,
    policy: Policy,
    challenger: ModelVersion,
    state: State,
    kept: Decision | None,
) -> Comparison:
    """Return the comparison with the present champion: that of the decision that is `kept`, if there is one."""
    from convrec.registry import measure  # noqa: PLC0415  (imports torch)

    if kept is not None and kept.comparison is not None:
        return kept.comparison
    both = [challenger] if state.champion is None else [challenger, find_version(client, state.champion)]
    sides = [_contestant(version, paths) for version in both]
    return measure.compare_versions(params, paths, policy, sides[0], sides[1] if len(sides) > 1 else None)


def _contestant(version: ModelVersion, paths: Paths) -> Any:
    from convrec.registry.measure import Contestant  # noqa: PLC0415  (imports torch)

    uri, digest = f"models:/{MODEL_NAME}/{version.version}", version.tags.get(CHECKPOINT_TAG)
    for stage in TRAINED[1:]:
        if digest and paths.model(stage).is_dir() and checkpoint_digest(paths.model(stage)) == digest:
            own = RegisteredModel(paths.model(stage), paths.catalog, version_settings(uri))
            return Contestant(str(version.version), digest, own)
    logger.info("version %s is fetched from the registry", version.version)
    model = download_version(uri)
    return Contestant(str(version.version), checkpoint_digest(model.checkpoint), model)


def _artifact(decision: Decision) -> str:
    return f"{FOLDER}/decision-{decision.number}"


def _carry_out(
    client: mlflow.MlflowClient, challenger: ModelVersion, state: State, decision: Decision, patience: float
) -> Decision:
    """Move the champion if the decision says so, and write it down."""
    if not decision.promoted:
        _record(client, challenger, decision)
        return decision
    try:
        artifact = f"{_artifact(decision)}.json"
        promote_version(client, state, decision.challenger, decision.by, decision.reason, artifact, patience)
    except Superseded as error:
        if read_state(client).champion == decision.challenger:  # by another process, which writes that down itself
            return Decision(ALREADY, "", decision.challenger, decision.challenger)
        gate = Gate("champion", None, "unchanged since the comparison", False, str(error))
        present = client.get_model_version(MODEL_NAME, decision.challenger)  # which may have had decisions meanwhile
        decision = _signed(replace(refuse(decision, gate), reason=str(error)), present, decision.by)
        _record(client, present, decision)
        return decision
    try:
        _record(client, challenger, decision)
    except Exception as error:  # the champion has moved, which its log tells: not to be undone by a note
        logger.error("version %s is the champion, but does not tell why (%s)", challenger.version, str(error)[:200])
    return decision


def _record(client: mlflow.MlflowClient, version: ModelVersion, decision: Decision) -> None:
    """Write a decision to the version's run, whole, and to the version, in short."""
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
    _tell_card(client, version, f"{decision.at} {headline(decision)[:_MAX_REASON]} (by {decision.by})")


def _tell_card(client: mlflow.MlflowClient, version: ModelVersion, line: str) -> None:
    present = client.get_model_version(MODEL_NAME, version.version)
    card = with_decision(present.description or "", line)
    client.update_model_version(MODEL_NAME, version.version, description=card)
    if version.run_id:
        client.log_text(version.run_id, card, "model_card.md")
