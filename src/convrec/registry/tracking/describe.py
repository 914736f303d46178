"""Describes runs: tags, parameters as text, and the files that hold the exact versions of data and parameters."""

import getpass
import hashlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from convrec.project.paths import Paths

PARENT_TAG, COMMIT_TAG = "mlflow.parentRunId", "mlflow.source.git.commit"
DESCRIPTION_TAG = "mlflow.note.content"  # Markdown; shown at the top of a run
DATA_TAGS = ("data_version", "catalog_version")
VERSIONS = "versions"  # artifact folder of a run
DIGEST_TAG = "versions.md5"
_SHORT = 12  # digits of a shortened hash
_WRITTEN_BY_RUNS = ("dvc.lock", "metrics", "plots")  # files in git that only runs change


def _git(*arguments: str) -> str:
    """Return git's output; empty without git."""
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip("\n")
    except (OSError, subprocess.CalledProcessError):
        return ""


def git_state() -> dict[str, str]:
    """Return the commit and whether tracked files differ from it, except those that runs write; empty without git."""
    commit, excluded = _git("rev-parse", "HEAD"), [f":(exclude){path}" for path in _WRITTEN_BY_RUNS]
    dirty = bool(_git("status", "--porcelain", "--untracked-files=no", "--", ".", *excluded))
    return {COMMIT_TAG: commit, "git_dirty": str(dirty).lower()} if commit else {}


def changed_by_runs() -> list[str]:
    """Return the committed files that runs write and that differ from the commit; empty without git."""
    return _git("diff", "--name-only", "HEAD", "--", *_WRITTEN_BY_RUNS).splitlines()


def user_name() -> str:
    """Return the name of the user of this process, for records."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "unknown"


def file_md5(path: Path) -> str:
    """Return the MD5 of a file, which is its hash in DVC's cache."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()


def table_facts(path: Path) -> dict[str, Any]:
    """Return the MD5 of a Parquet file, the number of its rows, and their first and last date, if they have dates."""
    file = pq.ParquetFile(path)
    dates = pd.Series(dtype=str)
    if "date" in file.schema_arrow.names:
        dates = pd.read_parquet(path, columns=["date"])["date"].astype(str)
    dates = dates[dates.str.len() > 0]
    window = f"{dates.min()[:10]} to {dates.max()[:10]}" if len(dates) else ""
    return {"md5": file_md5(path), "rows": file.metadata.num_rows, "dates": window}


def _text_md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def data_tags(paths: Paths) -> dict[str, str]:
    """Return short hashes: `data_version` of the three splits, and `catalog_version`; only for files that exist."""
    tags = {}
    splits = [paths.split(name) for name in ("train", "validation", "test")]
    if all(path.is_file() for path in splits):
        tags[DATA_TAGS[0]] = _text_md5(" ".join(map(file_md5, splits)))[:_SHORT]
    if paths.catalog.is_file():
        tags[DATA_TAGS[1]] = file_md5(paths.catalog)[:_SHORT]
    return tags


def read_versions(root: Path = Path()) -> dict[str, bytes]:
    """Return the content of params.yaml, dvc.yaml, dvc.lock and every `*.dvc` file that git does not ignore."""
    listed = _git("-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.dvc")
    names = ["params.yaml", "dvc.yaml", "dvc.lock", *sorted(filter(None, listed.split("\0")))]
    return {name: (root / name).read_bytes() for name in names if (root / name).is_file()}


def version_tags(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the tag with one MD5 of all names and contents; it is equal for runs of the same versions."""
    lines = [f"{name}\0{hashlib.md5(files[name], usedforsecurity=False).hexdigest()}\n" for name in sorted(files)]
    return {DIGEST_TAG: _text_md5("".join(lines))} if lines else {}


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
    """Return parameters by dotted name as text: strings unchanged, other values as compact JSON."""
    as_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=str).encode
    return {name: value if isinstance(value, str) else as_json(value) for name, value in flatten(params).items()}
