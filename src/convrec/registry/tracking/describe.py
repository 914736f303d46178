"""Describes runs: tags and parameters as text."""

import getpass
import hashlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convrec.project.paths import Paths

PARENT_TAG, COMMIT_TAG = "mlflow.parentRunId", "mlflow.source.git.commit"
DESCRIPTION_TAG = "mlflow.note.content"  # Markdown; shown at the top of a run
_MAX_PARAM, _MAX_TAG = 6000, 8000  # MLflow's limits, in characters
DATA_TAGS = ("data_version", "catalog_version")
_SPLITS = ("train", "validation", "test")
_SHORT = 12  # digits of a shortened hash
_WRITTEN_BY_RUNS = ("dvc.lock", "metrics", "plots")  # files in git that only runs change


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip("\n")


def git_state() -> dict[str, str]:
    """Return the commit and whether tracked files differ from it, except those that runs write; empty without git."""
    try:
        excluded = [f":(exclude){path}" for path in _WRITTEN_BY_RUNS]
        dirty = bool(_git("status", "--porcelain", "--untracked-files=no", "--", ".", *excluded))
        return {COMMIT_TAG: _git("rev-parse", "HEAD"), "git_dirty": str(dirty).lower()}
    except (OSError, subprocess.CalledProcessError):
        return {}


def changed_by_runs() -> list[str]:
    """Return the committed files that runs write and that differ from the commit; empty without git."""
    try:
        return _git("diff", "--name-only", "HEAD", "--", *_WRITTEN_BY_RUNS).splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


def user_tag() -> dict[str, str]:
    """Return MLflow's tag with the user's name; empty if the system does not know it."""
    try:
        return {"mlflow.user": getpass.getuser()}
    except (OSError, KeyError):
        return {}


def file_md5(path: Path) -> str:
    """Return the MD5 of a file, which is its hash in DVC's cache."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()


def data_tags(paths: Paths) -> dict[str, str]:
    """Return short hashes: `data_version` of the three splits, and `catalog_version`; only for files that exist."""
    tags = {}
    splits = [paths.split(name) for name in _SPLITS]
    if all(path.is_file() for path in splits):
        digests = " ".join(map(file_md5, splits))
        tags[DATA_TAGS[0]] = hashlib.md5(digests.encode(), usedforsecurity=False).hexdigest()[:_SHORT]
    if paths.catalog.is_file():
        tags[DATA_TAGS[1]] = file_md5(paths.catalog)[:_SHORT]
    return tags


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a flat mapping: nested keys are joined with dots."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, f"{name}.") if isinstance(value, dict) else {name: value})
    return flat


def metric_values(headlines: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers as metrics of a run, with slashes between nested names; texts are left out."""
    values = flatten(dict(headlines)).items()
    return {prefix + name.replace(".", "/"): float(value) for name, value in values if not isinstance(value, str)}


def param_texts(params: dict[str, Any]) -> dict[str, str]:
    """Return parameters by dotted name as text: strings unchanged, other values as compact JSON.

    A text over MLflow's limit is cut and ends with a hash of the whole text, so that different values stay different.
    """
    return {name: shortened(_text(value), _MAX_PARAM) for name, value in flatten(params).items()}


def tag_texts(tags: dict[str, str]) -> dict[str, str]:
    """Return tags with values cut to MLflow's limit, as in `param_texts`."""
    return {name: shortened(value, _MAX_TAG) for name, value in tags.items()}


def shortened(text: str, limit: int) -> str:
    """Return the text; if it is longer than the limit, cut it and append a hash of the whole text."""
    if len(text) <= limit:
        return text
    mark = f"... md5:{hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()}"
    return text[: limit - len(mark)] + mark


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
