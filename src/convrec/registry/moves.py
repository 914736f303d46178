"""The champion's moves: one step each, in a log on the registered model, and reversible."""

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

ROLLED_BACK = "rolled_back"  # the tag of a version that lost its place so
_TAG = "move.{:06d}"
_MAX_REASON = 1000  # characters: MLflow's tags hold 5,000


@dataclass(frozen=True)
class Move:
    """The alias `champion` going from one version to another; `unlogged` was found, not made, by this module."""

    at: str
    kind: Literal["promote", "rollback", "unlogged"]
    from_version: str | None
    to_version: str
    by: str
    reason: str
    decision: str | None = None  # the artifact of the version's run that tells why


@dataclass(frozen=True)
class State:
    """Who is the champion, and how it came to be: what a promotion was compared with, and moves from."""

    champion: str | None
    previous: str | None
    moves: tuple[Move, ...]


class Superseded(InputError):
    """The champion has changed since the versions were compared."""


def utc_now() -> str:
    """Return the time, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_state(client: mlflow.MlflowClient) -> State:
    """Return the present state of the registered model; an empty one where there is none."""
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
    """Return the versions that a rollback goes through, the champion last.

    A promotion adds one; a rollback takes away what came after its target, or, where the target is not among them, the
    champion alone. A champion that the log does not know (its alias was set by hand, or before there was a log, or the
    log could not be written) went back, if it is among them, and else was promoted.
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
    """Return the rollback by which a version lost its place, None where it has none or was promoted again since."""
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
    """Make a version the champion, and the one before `previous`.

    Raises `Superseded` where the champion is not the `expected` one any more, and `InputError` where another holds the
    lock: then nothing is moved.
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
    """Make the version before the champion, or an earlier champion `to`, the champion again; return the move.

    `previous` is then the one before that, or no version. The version that loses its place is not promoted again by
    itself. Raises `InputError` where there is nothing to go back to, or this user may not do that.
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
    """Remove what tells that the champion was rolled back once."""

    def remove() -> None:
        if ROLLED_BACK in client.get_model_version(MODEL_NAME, version).tags:
            with explain_forbidden(f"the tag {ROLLED_BACK} of version {version}"):
                client.delete_model_version_tag(MODEL_NAME, version, ROLLED_BACK)

    _attempt(f"the end of the tag {ROLLED_BACK} of version {version}", remove)


def _require(client: mlflow.MlflowClient, expected: State) -> State:
    state = read_state(client)
    if state.champion != expected.champion:
        raise Superseded(f"version {state.champion} became the champion meanwhile; compare again")
    if len(state.moves) != len(expected.moves):
        raise Superseded(f"the champion moved meanwhile, and is version {state.champion} again; compare again")
    return state


def rollback_target(client: mlflow.MlflowClient, state: State, to: str | None) -> str:
    """Return the version that a rollback makes the champion; raises `InputError` where there is none."""
    if state.champion is None:
        raise InputError(f"{MODEL_NAME}: no version is the champion, so there is nothing to roll back")
    known = lineage(state)
    if to is None:
        existing = [version for version in known[:-1] if _exists(client, version)]
        if not existing:
            raise InputError(
                f"version {state.champion} is the first champion: no version is `{PREVIOUS}` to go back to"
            )
        return existing[-1]
    logged = {version for move in state.moves for version in (move.from_version, move.to_version) if version}
    earlier = (logged | set(known)) - {state.champion}
    if to not in earlier:
        names = ", ".join(sorted(earlier, key=int)) or "none"
        raise InputError(f"--to {to}: not an earlier champion; those are: {names}")
    if not _exists(client, to):
        raise InputError(f"--to {to}: this version was deleted; name another")
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
    """Move the aliases and log it: `previous` first, then `champion`, which is the step that counts.

    Whatever fails before that step leaves the champion in place, and puts `previous` back; whatever fails after it is
    told, and mended by the next move.
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
    """Return whether the champion is in its new place, although the call that moved it failed: its answer was lost."""
    try:
        return read_aliases(client).get(CHAMPION) == move.to_version != move.from_version
    except Exception:  # the registry is gone altogether: the failure itself is raised
        return False


def _attempt(what: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except Exception as error:  # the champion has its place already, or keeps it: neither is to be undone by this
        logger.error("%s could not be written (%s)", what, str(error)[:200])


def _with_unlogged(state: State) -> tuple[Move, ...]:
    """Return the moves, with one more where the champion is not the one that the log ends with."""
    last = state.moves[-1].to_version if state.moves else None
    if state.champion in (None, last):
        return state.moves
    reason = "the champion was found so: its alias was set without a log"
    return (*state.moves, Move(utc_now(), "unlogged", last, str(state.champion), "", reason))


def _log(client: mlflow.MlflowClient, state: State, move: Move) -> None:
    entries = [*_with_unlogged(state), move]
    for number, entry in enumerate(entries[len(state.moves) :], start=len(state.moves) + 1):
        client.set_registered_model_tag(MODEL_NAME, _TAG.format(number), json.dumps(asdict(entry)))
