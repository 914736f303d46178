"""Deletes old registered versions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import mlflow
from mlflow.entities.model_registry import ModelVersion

from convrec.registry.experiment import running_experiment
from convrec.registry.gates import AWAITING
from convrec.registry.lock import PATIENCE, promotion_lock
from convrec.registry.promote import STATUS_TAG
from convrec.registry.versions import CHAMPION, MODEL_NAME, all_versions, explain_forbidden, read_aliases
from convrec.tracking import connect

_LOGGED = "models:/m-"  # prefix of the source of a logged model, before its id


@dataclass(frozen=True)
class Fate:
    """Whether a version is kept, and why."""

    version: str
    stays: bool
    why: str


def plan(
    versions: Sequence[tuple[str, str | None]], aliases: Mapping[str, str], keep: int, tried: str | None = None
) -> list[Fate]:
    """Return for each version whether it is kept; `versions` are numbers with their statuses, newest first.

    Kept are versions with an alias, the newest `keep` versions, those that await approval, and the version `tried` in
    the running experiment.
    """
    fates = []
    for place, (number, status) in enumerate(versions):
        held = sorted(alias for alias, holder in aliases.items() if holder == number)
        if held:
            fates.append(Fate(number, True, f"is the {' and '.join(held)}"))
        elif place < keep:
            fates.append(Fate(number, True, f"is among the newest {keep}"))
        elif status == AWAITING:
            fates.append(Fate(number, True, "awaits approval"))
        elif number == tried:
            fates.append(Fate(number, True, "is in the running experiment"))
        else:
            fates.append(Fate(number, False, f"is older than the newest {keep}, and has no alias"))
    return fates


def _fates(client: mlflow.MlflowClient, versions: Iterable[ModelVersion], keep: int) -> list[Fate]:
    listed = [(str(version.version), version.tags.get(STATUS_TAG)) for version in versions]
    if not listed:
        return []
    aliases = read_aliases(client)
    tried = running_experiment(client, aliases.get(CHAMPION))
    return plan(listed, aliases, keep, tried.challenger if tried else None)


def prune(keep: int, by: str, remove: bool, patience: float = PATIENCE) -> list[Fate]:
    """Return for each version whether it is kept; with `remove`, delete the others and their logged models.

    Run `mlflow gc` afterwards to delete their files. Deletion holds the promotion lock, so no promotion can run at the
    same time. Raises `InputError` if another process holds the lock, or this user may not delete a version.
    """
    connect()
    client = mlflow.MlflowClient()
    if not remove:
        return _fates(client, all_versions(client), keep)
    with promotion_lock(client, by, patience) as lock:
        versions = all_versions(client)
        fates = _fates(client, versions, keep)
        kept = {version.source for version, fate in zip(versions, fates, strict=True) if fate.stays}
        for version, fate in zip(versions, fates, strict=True):
            if not fate.stays:
                lock.check()
                source = version.source or ""
                with explain_forbidden(f"{MODEL_NAME}: version {version.version}"):
                    client.delete_model_version(MODEL_NAME, version.version)
                    if source not in kept and source.startswith(_LOGGED):
                        client.delete_logged_model(source.removeprefix("models:/"))
    return fates
