"""A lock for promotions on all machines: a registered model's name, which only one process can create."""

import logging
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import mlflow
from mlflow.entities.model_registry import RegisteredModel
from mlflow.exceptions import MlflowException

from convrec.errors import InputError
from convrec.registry.versions import MODEL_NAME, explain_forbidden

logger = logging.getLogger(__name__)

LOCK_NAME = f"{MODEL_NAME}.promotion-lock"
PATIENCE = 10.0  # seconds to wait; the lock is held only for a few calls to the registry
_POLL = 0.1  # seconds
_DESCRIPTION = (
    f"Not a model. While this name exists, a process is moving the aliases of {MODEL_NAME}. If that process was "
    "killed, remove the name with `convrec promote --unlock`."
)


@dataclass(frozen=True)
class PromotionLock:
    """A held lock."""

    client: mlflow.MlflowClient
    token: str

    def check(self) -> None:
        """Raise `InputError` if somebody has removed the lock: another process may be moving the aliases."""
        found = _find(self.client)
        if found is None or found.tags.get("token") != self.token:
            raise InputError("the promotion lock was removed while it was held; nothing was changed: promote again")


def _find(client: mlflow.MlflowClient) -> RegisteredModel | None:
    try:
        return client.get_registered_model(LOCK_NAME)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def describe_holder(client: mlflow.MlflowClient) -> str | None:
    """Return who holds the lock, on which machine and for how long; None if it is free."""
    found = _find(client)
    if found is None:
        return None
    tags, age = found.tags, time.time() - found.creation_timestamp / 1000
    return f"{tags.get('holder')} (process {tags.get('pid')} on {tags.get('host')}), for {age:.0f} s"


def _take(client: mlflow.MlflowClient, holder: str, token: str) -> bool:
    at = datetime.now(UTC).isoformat(timespec="seconds")
    tags = {"holder": holder, "host": socket.gethostname(), "pid": str(os.getpid()), "time": at, "token": token}
    try:
        client.create_registered_model(LOCK_NAME, tags=tags, description=_DESCRIPTION)
        return True
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    found = _find(client)  # a retried call, whose first answer was lost, finds its own lock
    return found is not None and found.tags.get("token") == token


@contextmanager
def promotion_lock(client: mlflow.MlflowClient, holder: str, patience: float = PATIENCE) -> Iterator[PromotionLock]:
    """Hold the lock during the block; it is released at the end, also after an error, unless the process is killed.

    Raises `InputError`, with holder, age and remedy, if another process holds it for longer than `patience` seconds.
    """
    lock, deadline = PromotionLock(client, uuid.uuid4().hex), time.monotonic() + patience
    while not _take(client, holder, lock.token):
        if time.monotonic() >= deadline:
            held = describe_holder(client)
            if held is None:
                continue
            raise InputError(
                f"{LOCK_NAME} is held by {held}; wait for that promotion, or, only if that process is dead, run "
                "`convrec promote --unlock`"
            )
        time.sleep(_POLL)
    try:
        yield lock
    finally:
        _release(lock)


def _release(lock: PromotionLock) -> None:
    try:
        found = _find(lock.client)
        if found is not None and found.tags.get("token") == lock.token:
            lock.client.delete_registered_model(LOCK_NAME)
    except Exception as error:  # the work under the lock is already done
        logger.warning("%s could not be released (%s); run `convrec promote --unlock`", LOCK_NAME, str(error)[:120])


def unlock(client: mlflow.MlflowClient) -> str:
    """Remove the lock and return a message. Use it only if the holder is dead."""
    held = describe_holder(client)
    if held is None:
        return "no promotion lock is held"
    with explain_forbidden(f"the promotion lock of {held}"):
        client.delete_registered_model(LOCK_NAME)
    return f"removed the promotion lock of {held}"
