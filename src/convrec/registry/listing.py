"""`convrec registry list`: one row for each version."""

import json
from datetime import UTC, datetime

import mlflow
from mlflow.entities.model_registry import ModelVersion

from convrec.registry.promote import STATUS_TAG
from convrec.registry.versions import all_versions, read_aliases
from convrec.tracking import connect

COLUMNS = ("version", "aliases", "created", "ndcg", "data", "parent", "status")
_DIGITS = 8  # shown digits of a hash


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
    parent = tags.get("parent.sft.md5", "")[:_DIGITS] or tags.get("parent.start") or tags.get("parent.base_model", "")
    return {
        "version": number,
        "aliases": ", ".join(sorted(alias for alias, holder in aliases.items() if holder == number)),
        "created": f"{created:%Y-%m-%d %H:%M} UTC",
        "ndcg": _ndcg(tags),
        "data": tags.get("test.md5", "")[:_DIGITS],
        "parent": f"{'sft ' if 'parent.sft.md5' in tags else ''}{parent}",
        "status": tags.get(STATUS_TAG, "not decided"),
    }


def _ndcg(tags: dict[str, str]) -> str:
    """Return NDCG at the largest cutoff with its interval, as far as the version's tags have them."""
    names = [name.removeprefix("test.") for name in tags if name.startswith("test.ndcg_at_")]
    if not names:
        return ""
    name = max(names, key=lambda one: int(one.rsplit("_", 1)[1]))
    text = f"{float(tags[f'test.{name}']):.4f}"
    interval = json.loads(tags.get(f"metrics.{tags.get('served_as', '')}", "{}")).get(name)
    spread = f" [{interval[1]:.4f}, {interval[2]:.4f}]" if interval else ""
    return f"{text}{spread} @{name.rsplit('_', 1)[1]}"
