"""Changes of the champion: each is atomic, logged on the registered model, and reversible."""

import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import mlflow
from mlflow.exceptions import MlflowException

from convrec.errors import InputError
from convrec.registry.lock import PATIENCE, promotion_lock
from convrec.registry.versions import CHAMPION, MODEL_NAME, PREVIOUS, explain_forbidden, read_aliases

logger = logging.getLogger(__name__)

ROLLED_BACK = "rolled_back"  # tag of a version that was rolled back
_TAG = "move.{:06d}"
_MAX_REASON = 1000  # characters: MLflow's tags hold 5,000


@dataclass(frozen=True)
class Move:
    """A change of the alias `champion`; an `unlogged` one was not made by this module, only detected."""

    at: str
    kind: Literal["promote", "rollback", "unlogged"]
    from_version: str | None
    to_version: str
    by: str
    reason: str
    decision: str | None = None  # the artifact with the reasons, in the version's run


@dataclass(frozen=True)
class State:
    """The champion, the previous champion, and the log of moves."""

    champion: str | None
    previous: str | None
    moves: tuple[Move, ...]


class Superseded(InputError):
    """The champion has changed since the versions were compared."""


def utc_now() -> str:
    """Return the current time in UTC, in ISO format to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_state(client: mlflow.MlflowClient) -> State:
    """Return the current state of the registered model; an empty state if there is no model."""
    try:
        tags = client.get_registered_model(MODEL_NAME).tags
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return State(None, None, ())
    names = sorted(name for name in tags if re.fullmatch(r"move\.\d{6}", name))
    aliases = read_aliases(client)
    return State(aliases.get(CHAMPION), aliases.get(PREVIOUS), tuple(Move(**json.loads(tags[name])) for name in names))


def lineage(state: State) -> list[str]:
    """Return the versions that rollbacks return to, oldest first; the champion is last.

    A promotion adds a version. A rollback removes the versions after its target; if its target is not in the list, it
    replaces the champion. If the champion is not the last logged one (its alias was set by hand or before there was a
    log, or the log could not be written), this counts as a rollback if the version is in the list, else as a promotion.
    """
    stack: list[str] = []
    for move in state.moves:
        if move.from_version and not stack:
            stack.append(move.from_version)
        _follow(stack, move.kind, move.to_version)
    if state.champion is not None:
        _follow(stack, "unlogged", state.champion)
    return stack


def _follow(stack: list[str], kind: str, to: str) -> None:
    if stack[-1:] == [to]:
        return
    places = [place for place, version in enumerate(stack[:-1]) if version == to]
    if kind == "promote" or (kind == "unlogged" and not places):
        stack.append(to)
    else:
        stack[places[-1] if places else -1 :] = [to]


def rolled_back(moves: Sequence[Move], version: str) -> Move | None:
    """Return the last rollback away from a version; None if there is none or it became the champion again since."""
    last = None
    for move in moves:
        if move.kind == "rollback" and move.from_version == version:
            last = move
        elif move.to_version == version:
            last = None
    return last


def promote_version(
    client: mlflow.MlflowClient,
    expected: State,
    version: str,
    by: str,
    reason: str,
    decision: str | None = None,
    patience: float = PATIENCE,
) -> Move:
    """Make a version the champion, and the old champion `previous`.

    Raises `Superseded` if the champion has changed since `expected` was read, and `InputError` if another process holds
    the lock. In both cases nothing is changed.
    """
    with promotion_lock(client, by, patience) as lock:
        state = _require(client, expected)
        move = Move(utc_now(), "promote", state.champion, version, by, reason[:_MAX_REASON], decision)
        lock.check()
        _commit(client, state, move, state.champion)
        _unmark(client, version)
    return move


def roll_back(
    client: mlflow.MlflowClient, by: str, reason: str, to: str | None = None, patience: float = PATIENCE
) -> Move:
    """Make the previous champion, or an earlier champion `to`, the champion again; return the move.

    `previous` is then the version before that, or unset. The version that was rolled back is not promoted again without
    `again`. Raises `InputError` if there is no version to return to, or this user lacks the permission.
    """
    with promotion_lock(client, by, patience) as lock:
        state = read_state(client)
        target = rollback_target(client, state, to)
        move = Move(utc_now(), "rollback", state.champion, target, by, reason[:_MAX_REASON])
        after = lineage(State(target, None, (*_with_unlogged(state), move)))
        before = [version for version in after[:-1] if _exists(client, version)]
        lock.check()
        _commit(client, state, move, before[-1] if before else None)
        _unmark(client, target)
        record = json.dumps({"at": move.at, "by": by, "reason": move.reason, "to": target})
        _attempt(
            "the tag of the rollback",
            lambda: client.set_model_version_tag(MODEL_NAME, str(state.champion), ROLLED_BACK, record),
        )
    return move


def _unmark(client: mlflow.MlflowClient, version: str) -> None:
    """Remove the tag of an earlier rollback from a version."""

    def remove() -> None:
        if ROLLED_BACK in client.get_model_version(MODEL_NAME, version).tags:
            with explain_forbidden(f"the tag {ROLLED_BACK} of version {version}"):
                client.delete_model_version_tag(MODEL_NAME, version, ROLLED_BACK)

    _attempt(f"the end of the tag {ROLLED_BACK} of version {version}", remove)


def _require(client: mlflow.MlflowClient, expected: State) -> State:
    state = read_state(client)
    if state.champion != expected.champion:
        raise Superseded(f"version {state.champion} became the champion during the comparison; compare again")
    if len(state.moves) != len(expected.moves):
        raise Superseded(
            f"the champion changed during the comparison, and is version {state.champion} again; compare again"
        )
    return state


def rollback_target(client: mlflow.MlflowClient, state: State, to: str | None) -> str:
    """Return the version that a rollback makes the champion; raises `InputError` if there is none."""
    if state.champion is None:
        raise InputError(f"{MODEL_NAME}: there is no champion to roll back; promote a version first")
    known = lineage(state)
    if to is None:
        existing = [version for version in known[:-1] if _exists(client, version)]
        if not existing:
            raise InputError(
                f"version {state.champion} is the first champion: there is no `{PREVIOUS}` version to return to"
            )
        return existing[-1]
    logged = {version for move in state.moves for version in (move.from_version, move.to_version) if version}
    earlier = (logged | set(known)) - {state.champion}
    if to not in earlier:
        names = ", ".join(sorted(earlier, key=int)) or "none"
        raise InputError(f"--to {to}: not an earlier champion; give one of: {names}")
    if not _exists(client, to):
        raise InputError(f"--to {to}: this version was deleted; give another")
    return to


def _exists(client: mlflow.MlflowClient, version: str) -> bool:
    try:
        client.get_model_version(MODEL_NAME, version)
        return True
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return False


def _set_previous(client: mlflow.MlflowClient, version: str | None) -> None:
    if version is None:
        with explain_forbidden(f"{MODEL_NAME}: the alias {PREVIOUS}"):
            client.delete_registered_model_alias(MODEL_NAME, PREVIOUS)
    else:
        client.set_registered_model_alias(MODEL_NAME, PREVIOUS, version)


def _commit(client: mlflow.MlflowClient, state: State, move: Move, previous: str | None) -> None:
    """Move the alias `previous`, then `champion`, which completes the change, then write the log.

    If a step before that fails, the champion stays and `previous` is restored. If the log fails, the error is logged,
    and the next move completes the log.
    """
    try:
        if previous != state.previous:
            _set_previous(client, previous)
        client.set_registered_model_alias(MODEL_NAME, CHAMPION, move.to_version)
    except Exception:
        if not _has_moved(client, move):
            if previous != state.previous:
                _attempt(f"the alias {PREVIOUS}", lambda: _set_previous(client, state.previous))
            raise
    _attempt("the log of this move", lambda: _log(client, state, move))


def _has_moved(client: mlflow.MlflowClient, move: Move) -> bool:
    """Return whether the champion has changed although the call failed, because its answer was lost."""
    try:
        return read_aliases(client).get(CHAMPION) == move.to_version != move.from_version
    except Exception:  # the registry is down: the caller raises the original error
        return False


def _attempt(what: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except Exception as error:  # this must not undo the champion's move
        logger.error("%s could not be written (%s)", what, str(error)[:200])


def _with_unlogged(state: State) -> tuple[Move, ...]:
    """Return the moves, with an `unlogged` one added if the champion is not the one at the end of the log."""
    last = state.moves[-1].to_version if state.moves else None
    if state.champion in (None, last):
        return state.moves
    reason = "the champion was found so: its alias was set without a log"
    return (*state.moves, Move(utc_now(), "unlogged", last, str(state.champion), "", reason))


def _log(client: mlflow.MlflowClient, state: State, move: Move) -> None:
    entries = [*_with_unlogged(state), move]
    for number, entry in enumerate(entries[len(state.moves) :], start=len(state.moves) + 1):
        client.set_registered_model_tag(MODEL_NAME, _TAG.format(number), json.dumps(asdict(entry)))
