"""Versions are compared and decided on, the aliases moved, and the reasons recorded; and versions listed and pruned."""

import json
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities.model_registry import ModelVersion

from convrec.project.config.params import Params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.registry.decisions import (
    ALREADY,
    AWAITING,
    PROMOTED,
    REFUSED,
    Comparison,
    Decision,
    Gate,
    decision_markdown,
)
from convrec.registry.experiment import recorded_result, running_experiment
from convrec.registry.model_card import TEST_TAG
from convrec.registry.moves import (
    ChampionChanged,
    Move,
    State,
    claim,
    not_undone,
    promote_version,
    read_state,
    roll_back,
    rolled_back,
    utc_now,
)
from convrec.registry.policy import POLICY_FILE, Policy, decide, load_policy
from convrec.registry.tracking import COMMIT_TAG, connect, git_state, user_name
from convrec.registry.versions import (
    CHAMPION,
    MODEL_NAME,
    all_versions,
    download_version,
    find_version,
    read_aliases,
)

COLUMNS = ("version", "aliases", "created", "ndcg", "data", "parent", "status")  # of `list_versions`
STATUS_TAG, DECISION_TAG = "promotion.status", "promotion.decision"
_MAX_REASON = 500  # characters of a reason in a tag
_LOGGED = "models:/m-"  # prefix of the source of a logged model, before its id


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

    `approve` is a person's approval. A person's rejection holds until somebody approves, or the champion changes.
    `again` permits a version that was rolled back. The decision is recorded on the version, and in its run as
    `promotion/decision-N.json` and `.md`. With `dry_run`, nothing is written or moved.

    Raises `InputError` if policy, data or version is missing or invalid.
    """
    policy = load_policy(params.common.cutoffs, paths.root / POLICY_FILE)
    connect(paths.root)
    client = mlflow.MlflowClient()
    challenger = find_version(client, version)
    name, state, who = str(challenger.version), read_state(client), by or user_name()
    if state.champion == name:
        return Decision(ALREADY, "", name, name)
    rejection = None if approve else _rejection(client, name, state)
    if rejection is not None:
        return rejection
    comparison = _compare(params, paths, policy, challenger, state)
    if policy.experiment is not None and state.champion is not None:
        comparison = replace(comparison, experiment=recorded_result(challenger, state.champion))
    lost, approval = rolled_back(state.moves, name), {"by": who, "at": utc_now()} if approve else None
    why = f"rolled back at {lost.at} by {lost.by}{': ' if lost.reason else ''}{lost.reason}" if lost else None
    decision = decide(policy, comparison, why, again, approval)
    if dry_run:
        return decision
    rejection = None if approve else _rejection(client, name, state)  # during the comparison
    return rejection or _carry_out(client, state, decision, who)


def reject(paths: Paths, version: str | None = None, *, by: str, reason: str = "") -> Decision:
    """Record and return a person's rejection of a version that awaits approval; the champion stays.

    Raises `InputError` for a version that does not await approval.
    """
    connect(paths.root)
    client = mlflow.MlflowClient()
    name = str(find_version(client, version).version)
    last = _summary(client, name)
    if last.get("status") != AWAITING:
        status = last.get("status", "no decision yet")
        raise InputError(f"--reject: version {name} does not await approval ({status})")
    message = f"refused by {by}{': ' if reason else ''}{reason}"
    said, gate = {"by": by, "at": utc_now(), "refused": reason}, Gate("approval", None, "required", False, message)
    return _record(client, Decision(REFUSED, str(gate), name, last["champion"], (gate,), approval=said), by)


def rollback(paths: Paths, to: str | None = None, *, by: str | None = None, reason: str = "") -> Move:
    """Return to the previous champion, or to the earlier one `to`; return the move.

    The version that was rolled back is not promoted again without `again`. Raises `InputError` if there
    is no version to return to.
    """
    connect(paths.root)
    client = mlflow.MlflowClient()
    move = roll_back(client, by or user_name(), reason, to)
    with not_undone(f"the rollback from version {move.from_version} to {move.to_version}"):
        client.set_model_version_tag(MODEL_NAME, str(move.from_version), STATUS_TAG, "rolled back")
        client.set_model_version_tag(MODEL_NAME, move.to_version, STATUS_TAG, PROMOTED)
    return move


def _summary(client: mlflow.MlflowClient, version: str) -> dict[str, Any]:
    """Return the summary of the last decision on a version; empty without a decision."""
    return json.loads(client.get_model_version(MODEL_NAME, version).tags.get(DECISION_TAG, "{}"))


def _rejection(client: mlflow.MlflowClient, version: str, state: State) -> Decision | None:
    """Return a person's rejection, if it was the last decision, about the present champion."""
    last = _summary(client, version)
    by_reason = str(last.get("reason", "")).startswith("approval: refused by ")  # of earlier releases
    if not last.get("rejected", by_reason) or last["champion"] != state.champion:
        return None
    said = {"by": last["by"], "at": last["at"], "refused": last["reason"]}
    return Decision(REFUSED, last["reason"], version, state.champion, approval=said)


def _compare(params: Params, paths: Paths, policy: Policy, challenger: ModelVersion, state: State) -> Comparison:
    from convrec.registry.measure import compare_versions  # noqa: PLC0415  (imports torch)

    versions = [version for version in (str(challenger.version), state.champion) if version is not None]
    with tempfile.TemporaryDirectory() as folder:
        own, *other = [
            (version, download_version(f"models:/{MODEL_NAME}/{version}", Path(folder, version)))
            for version in versions
        ]
        return compare_versions(params, paths, policy, own, other[0] if other else None)


def _carry_out(client: mlflow.MlflowClient, state: State, decision: Decision, by: str) -> Decision:
    """Move the champion if the decision is a promotion, and record the decision."""
    name = decision.challenger
    if decision.promoted:
        try:
            promote_version(client, state, name, by, decision.reason, f"{_artifact(_number(client, name))}.json")
        except ChampionChanged as error:
            if read_state(client).champion == name:  # promoted by another process, which records it
                return Decision(ALREADY, "", name, name)
            gate = Gate("champion", None, "unchanged since the comparison", False, str(error))
            decision = replace(decision, status=REFUSED, reason=str(error), gates=(*decision.gates, gate))
    if not decision.promoted:
        return _record(client, decision, by)
    with not_undone(f"the promotion of version {name}"):
        decision = _record(client, decision, by)
    return decision


def _number(client: mlflow.MlflowClient, version: str) -> int:
    """Return the number of a version's next decision, from 1."""
    return int(_summary(client, version).get("number", 0)) + 1


def _artifact(number: int) -> str:
    return f"promotion/decision-{number}"


def _record(client: mlflow.MlflowClient, decision: Decision, by: str) -> Decision:
    """Write the whole decision to the version's run, and a summary to its tags; return it with number and signature."""
    git, version = git_state(), client.get_model_version(MODEL_NAME, decision.challenger)
    commit = git.get(COMMIT_TAG, "") + (", with changes" if git.get("git_dirty") == "true" else "")
    number = _number(client, decision.challenger)
    decision = replace(decision, number=number, by=by, at=utc_now(), commit=commit)
    if version.run_id:
        client.log_text(version.run_id, decision_markdown(decision), f"{_artifact(number)}.md")
        client.log_dict(version.run_id, decision.to_json(), f"{_artifact(number)}.json")
    short = {
        "number": number,
        "status": decision.status,
        "reason": decision.reason[:_MAX_REASON],
        "champion": decision.champion,
        "by": by,
        "at": decision.at,
        "rejected": decision.rejected,
        "artifact": f"{_artifact(number)}.json" if version.run_id else "",
    }
    client.set_model_version_tag(MODEL_NAME, version.version, DECISION_TAG, json.dumps(short))
    client.set_model_version_tag(MODEL_NAME, version.version, STATUS_TAG, decision.status)
    return decision


def list_versions() -> list[dict[str, str]]:
    """Return one row for each version, newest first; its NDCG is that of the system as it is served."""
    connect()
    client = mlflow.MlflowClient()
    aliases = read_aliases(client)
    return [_row(version, aliases) for version in all_versions(client)]


def _row(version: ModelVersion, aliases: Mapping[str, str]) -> dict[str, str]:
    number, tags = str(version.version), version.tags
    created = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC)
    prefix = f"{TEST_TAG}ndcg_at_"
    ndcg = [f"{value} @{name.removeprefix(prefix)}" for name, value in tags.items() if name.startswith(prefix)]
    return {
        "version": number,
        "aliases": ", ".join(sorted(alias for alias, holder in aliases.items() if holder == number)),
        "created": f"{created:%Y-%m-%d %H:%M} UTC",
        "ndcg": ndcg[0] if ndcg else "",
        "data": tags.get("data_version", ""),
        "parent": tags.get("parent", ""),
        "status": tags.get(STATUS_TAG, "not decided"),
    }


def prune(keep: int, by: str, remove: bool) -> list[str]:
    """Return the versions that are older than the newest `keep`; with `remove`, delete them and their logged models.

    Versions with an alias, those that await approval, and the one in the running experiment are kept. Run `mlflow gc`
    afterwards to delete the files. The champion cannot change meanwhile.
    """
    connect()
    client = mlflow.MlflowClient()
    with claim(client, by) if remove else nullcontext(lambda: None) as check:
        versions, aliases = all_versions(client), read_aliases(client)
        tried = running_experiment(client, aliases.get(CHAMPION))
        used = {*aliases.values(), *([tried.challenger] if tried else [])}
        old = [
            version
            for version in versions[keep:]
            if str(version.version) not in used and version.tags.get(STATUS_TAG) != AWAITING
        ]
        sources = {version.source for version in versions if version not in old}
        for version in old if remove else []:
            check()
            client.delete_model_version(MODEL_NAME, version.version)
            source = version.source or ""
            if source not in sources and source.startswith(_LOGGED):
                client.delete_logged_model(source.removeprefix("models:/"))
    return [str(version.version) for version in old]
