"""`convrec registry list`: one row for each version."""

from datetime import UTC, datetime

import mlflow
from mlflow.entities.model_registry import ModelVersion

from convrec.registry.model_card import TEST_TAG
from convrec.registry.promote import STATUS_TAG
from convrec.registry.versions import all_versions, read_aliases
from convrec.tracking import connect

COLUMNS = ("version", "aliases", "created", "ndcg", "data", "parent", "status")


def list_versions() -> list[dict[str, str]]:
    """Return one row for each version, newest first; its NDCG is that of the system as it is served."""
    connect()
    client = mlflow.MlflowClient()
    versions = all_versions(client)
    aliases = read_aliases(client) if versions else {}
    return [_row(version, aliases) for version in versions]


def _row(version: ModelVersion, aliases: dict[str, str]) -> dict[str, str]:
    number, tags = str(version.version), version.tags
    created = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC)
    return {
        "version": number,
        "aliases": ", ".join(sorted(alias for alias, holder in aliases.items() if holder == number)),
        "created": f"{created:%Y-%m-%d %H:%M} UTC",
        "ndcg": _ndcg(tags),
        "data": tags.get("data_version", ""),
        "parent": tags.get("parent", ""),
        "status": tags.get(STATUS_TAG, "not decided"),
    }


def _ndcg(tags: dict[str, str]) -> str:
    """Return the test NDCG with its interval and cutoff, if the version's tags have it."""
    prefix = f"{TEST_TAG}ndcg_at_"
    return next(
        (f"{value} @{name.removeprefix(prefix)}" for name, value in tags.items() if name.startswith(prefix)), ""
    )
