"""Lists the registered versions, and deletes old ones."""

from collections.abc import Mapping
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
    with claim(client, by) as check:
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
