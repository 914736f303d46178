"""Lists the registered versions, and deletes old ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import mlflow
from mlflow.entities.model_registry import ModelVersion

from convrec.registry.decisions import AWAITING
from convrec.registry.experiment import running_experiment
from convrec.registry.model_card import TEST_TAG
from convrec.registry.moves import claim
from convrec.registry.promote import STATUS_TAG
from convrec.registry.tracking import connect
from convrec.registry.versions import CHAMPION, MODEL_NAME, all_versions, read_aliases

COLUMNS = ("version", "aliases", "created", "ndcg", "data", "parent", "status")
_LOGGED = "models:/m-"  # prefix of the source of a logged model, before its id


@dataclass(frozen=True)
class Fate:
    """Whether a version is kept, and why."""

    version: str
    stays: bool
    why: str


def list_versions() -> list[dict[str, str]]:
    """Return one row for each version, newest first; its NDCG is that of the system as it is served."""
    connect()
    client = mlflow.MlflowClient()
    versions = all_versions(client)
    aliases = read_aliases(client) if versions else {}
    return [_row(version, aliases) for version in versions]


def _row(version: ModelVersion, aliases: Mapping[str, str]) -> dict[str, str]:
    number, tags = str(version.version), version.tags
    created = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC)
    prefix = f"{TEST_TAG}ndcg_at_"
    ndcg = [f"{value} @{name.removeprefix(prefix)}" for name, value in tags.items() if name.startswith(prefix)]
    return {
        "version": number,
        "aliases": ", ".join(_held(number, aliases)),
        "created": f"{created:%Y-%m-%d %H:%M} UTC",
        "ndcg": ndcg[0] if ndcg else "",
        "data": tags.get("data_version", ""),
        "parent": tags.get("parent", ""),
        "status": tags.get(STATUS_TAG, "not decided"),
    }


def _held(number: str, aliases: Mapping[str, str]) -> list[str]:
    return sorted(alias for alias, holder in aliases.items() if holder == number)


def plan(
    versions: Sequence[tuple[str, str | None]], aliases: Mapping[str, str], keep: int, tried: str | None = None
) -> list[Fate]:
    """Return for each version whether it is kept; `versions` are numbers with their statuses, newest first.

    Kept are versions with an alias, the newest `keep` versions, those that await approval, and the version `tried` in
    the running experiment.
    """
    fates = []
    for place, (number, status) in enumerate(versions):
        reasons = {
            f"is the {' and '.join(_held(number, aliases))}": number in aliases.values(),
            f"is among the newest {keep}": place < keep,
            "awaits approval": status == AWAITING,
            "is in the running experiment": number == tried,
        }
        why = next((reason for reason, holds in reasons.items() if holds), None)
        fates.append(Fate(number, why is not None, why or f"is older than the newest {keep}, and has no alias"))
    return fates


def prune(keep: int, by: str, remove: bool) -> list[Fate]:
    """Return for each version whether it is kept; with `remove`, delete the others and their logged models.

    Run `mlflow gc` afterwards to delete their files. The champion cannot change meanwhile. Raises `InputError` if this
    user may not delete a version.
    """
    connect()
    client = mlflow.MlflowClient()
    with claim(client, by) as check:
        versions = all_versions(client)
        aliases = read_aliases(client) if versions else {}
        tried = running_experiment(client, aliases.get(CHAMPION))
        listed = [(str(version.version), version.tags.get(STATUS_TAG)) for version in versions]
        fates = plan(listed, aliases, keep, tried.challenger if tried else None)
        kept = {version.source for version, fate in zip(versions, fates, strict=True) if fate.stays}
        for version, fate in zip(versions, fates, strict=True):
            if remove and not fate.stays:
                check()
                client.delete_model_version(MODEL_NAME, version.version)
                source = version.source or ""
                if source not in kept and source.startswith(_LOGGED):
                    client.delete_logged_model(source.removeprefix("models:/"))
    return fates
