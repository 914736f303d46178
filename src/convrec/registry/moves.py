"""Changes of the champion: each is a compare-and-set, is written to the history, and can be rolled back.

The alias `champion` of MLflow says which version is the champion. The history explains how it became so: one tag of the
registered model for each move (`move.000001`, `move.000002`, ...), which is never changed afterwards: a sentence for
people, and the move as JSON on the next line.

MLflow has no compare-and-set over HTTP, but only one process can create a registered model of a certain name. A process
that has created `claim_name` moves the alias, for a few calls, and deletes it. It writes the history first; setting
`champion` completes the move. After an error or a kill before that, the champion is the old one, and the next move
corrects the history. A claim that stays the same for `PATIENCE` seconds belongs to a killed process; the next
process takes it over.

Limit: a process that is suspended for longer than `PATIENCE` between its check of the claim and its last write can
overwrite the move of the process that took over. The next move then adds an `unlogged` entry to the history.
"""

import json
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal

import mlflow
from mlflow.exceptions import MlflowException

from convrec.project.errors import InputError
from convrec.project.text import plain
from convrec.registry.tracking.store import short_message, store_error
from convrec.registry.versions import CHAMPION, all_versions, model_name, registered_model

logger = logging.getLogger(__name__)

STATUS_TAG = "promotion.status"  # of a version
PATIENCE = 60.0  # seconds; a claim is held for a few calls to the registry, each with a timeout of 20 s
_POLL = 0.1  # seconds
_DESCRIPTION = "Not a model. While this name exists, a process is moving the aliases of {}."
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

    def to_tag(self) -> str:
        """Return a sentence about the move, and on the next line the move as JSON."""
        start = f"Version {self.to_version} became the champion on {self.at[:16].replace('T', ' ')} UTC"
        before = f" in place of version {self.from_version}" if self.from_version else ""
        how = {"promote": "promoted by", "rollback": "rolled back by", "unlogged": "not by convrec"}[self.kind]
        return f"{start}{before}, {f'{how} {plain(self.by)}'.rstrip()}.\n{json.dumps(asdict(self))}"


@dataclass(frozen=True)
class State:
    """The champion and the history, whose last `unlogged` move may not be written yet."""

    champion: str | None
    moves: tuple[Move, ...]
    num_written: int


class ChampionChanged(InputError):
    """The champion has changed since the versions were compared."""


def claim_name() -> str:
    """Return the name that only one process at a time can register."""
    return f"{model_name()}.moving"


@contextmanager
def claim(client: mlflow.MlflowClient, by: str) -> Iterator[Callable[[], None]]:
    """Let only this process move the aliases during the block.

    Waits for a process that moves them, and takes over from one that holds the same claim for `PATIENCE` seconds.
    Yields a function to call before the first change: it raises `InputError` if another process took over. Errors of
    the registry are raised as those of `connect`.
    """
    own = {"holder": f"{by} (process {os.getpid()} on {socket.gethostname()})", "token": uuid.uuid4().hex}
    rival: dict[str, str] = {}
    deadline = 0.0

    def held() -> dict[str, str]:
        model = registered_model(client, claim_name())
        return {} if model is None else dict(model.tags)

    def create() -> dict[str, str]:
        """Return the tags of the claim: its own, those of another process, or none if that has just ended."""
        try:
            client.create_registered_model(claim_name(), tags=own, description=_DESCRIPTION.format(model_name()))
            return own
        except MlflowException as error:
            # MLflow looks for a model that exists already, and finds none where its claim ends just then.
            if error.error_code not in ("RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"):
                raise
        return held()  # a retried call, whose first answer was lost, finds its own

    def delete(tags: dict[str, str]) -> None:
        if held() == tags:
            client.delete_registered_model(claim_name())

    def check() -> None:
        if held() != own:
            raise InputError("another process took over this change of the champion; nothing was changed: try again")

    try:
        while (found := create()) != own:
            if found != rival:
                rival, deadline = found, time.monotonic() + PATIENCE
                logger.info("waiting up to %g s for %s to move the aliases", PATIENCE, found.get("holder"))
            if found and time.monotonic() >= deadline:
                logger.warning("%s has held %s for %g s: taking over", found.get("holder"), claim_name(), PATIENCE)
                delete(found)
            else:
                time.sleep(_POLL)
        try:
            yield check
        finally:
            try:
                delete(own)
            except Exception as error:  # the move is done
                logger.warning("%s could not be deleted (%s); it is ignored after %g s", claim_name(), error, PATIENCE)
    except MlflowException as error:
        raise store_error(error) from None


@contextmanager
def not_undone(what: str) -> Iterator[None]:
    """Log any error of the block: `what` is done, and a missing record must not make it look as if it were not."""
    try:
        yield
    except Exception as error:  # object stores' libraries have their own exceptions
        logger.error("%s is done, but could not be recorded (%s)", what, short_message(error))


def utc_now() -> str:
    """Return the current time in UTC, in ISO format to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_state(client: mlflow.MlflowClient) -> State:
    """Return the current state of the registered model; an empty state if there is no model.

    If the champion is not that of the last move, its alias was set by hand, or a process was killed before it set the
    alias: `moves` then ends with an `unlogged` move.
    """
    model = registered_model(client, model_name())
    if model is None:
        return State(None, (), 0)
    names = sorted(name for name in model.tags if re.fullmatch(r"move\.\d{6}", name))
    moves = [Move(**json.loads(model.tags[name].rpartition("\n")[2])) for name in names]
    champion = str(model.aliases[CHAMPION]) if CHAMPION in model.aliases else None
    last = moves[-1].to_version if moves else None
    if champion not in (None, last):
        moves.append(Move(utc_now(), "unlogged", last, str(champion), "", "the alias was found so"))
    return State(champion, tuple(moves), len(names))


def earlier_champions(moves: Sequence[Move]) -> list[str]:
    """Return the versions that rollbacks return to, the last one first to be returned to.

    A promotion adds the version that it replaces. A rollback removes its target and the versions after it, and so does
    an unlogged move to a version in the list.
    """
    stack: list[str] = []
    for move in moves:
        if move.kind != "promote" and move.to_version in stack:
            del stack[len(stack) - 1 - stack[::-1].index(move.to_version) :]
        elif move.kind != "rollback" and move.from_version is not None:
            stack.append(move.from_version)
    return stack


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
    client: mlflow.MlflowClient, expected: State, version: str, by: str, reason: str, decision: str | None = None
) -> Move:
    """Make a version the champion; return the move.

    Raises `ChampionChanged`, and changes nothing, if the champion has changed since `expected` was read.
    """
    with claim(client, by) as check:
        state = read_state(client)
        if (state.champion, len(state.moves)) != (expected.champion, len(expected.moves)):
            change = f"from version {expected.champion or 'none'} to {state.champion or 'none'}"
            if state.champion == expected.champion:
                change = f"and is version {state.champion} again"
            raise ChampionChanged(f"the champion changed {change} while version {version} was measured; promote again")
        move = Move(utc_now(), "promote", state.champion, version, by, reason[:_MAX_REASON], decision)
        _carry_out(client, state, move, check)
    return move


def roll_back(client: mlflow.MlflowClient, by: str, reason: str) -> Move:
    """Make the previous champion the champion again; return the move.

    The version that was rolled back is not promoted again without `again`. Raises `InputError` if there is no version
    to return to, or this user lacks the permission.
    """
    with claim(client, by) as check:
        state = read_state(client)
        if state.champion is None:
            raise InputError(f"{model_name()}: there is no champion to roll back; promote a version first")
        known = {str(version.version) for version in all_versions(client)}
        earlier = [version for version in earlier_champions(state.moves) if version in known]
        if not earlier:
            raise InputError(f"version {state.champion} is the first champion: there is no version to return to")
        move = Move(utc_now(), "rollback", state.champion, earlier[-1], by, reason[:_MAX_REASON])
        _carry_out(client, state, move, check)
    with not_undone(f"the rollback from version {move.from_version} to {move.to_version}"):
        client.set_model_version_tag(model_name(), str(move.from_version), STATUS_TAG, "rolled back")
        client.set_model_version_tag(model_name(), move.to_version, STATUS_TAG, "promoted")
    return move


def _carry_out(client: mlflow.MlflowClient, state: State, move: Move, check: Callable[[], None]) -> None:
    moves = (*state.moves, move)
    check()
    for number, entry in enumerate(moves[state.num_written :], start=state.num_written + 1):
        client.set_registered_model_tag(model_name(), _TAG.format(number), entry.to_tag())
    try:
        client.set_registered_model_alias(model_name(), CHAMPION, move.to_version)
    except Exception:
        if read_state(client).champion != move.to_version:  # else only the answer was lost
            raise
