"""`convrec data fetch` and `convrec fetch-model`: public files of the Hugging Face Hub at a pinned commit.

The commit is written to `FOLDER.lock.json` beside the folder. Commit this file to git: a later fetch, on any machine,
downloads that commit. Every file is compared with the hash that the Hub lists.

The raw Reddit-Movie dump for `data.source: reddit_movie` is the dataset `ZhankuiHe/reddit_movie_large_v1`.
"""

import glob
import shutil
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from convrec.generation.hub import DEFAULT_REVISION, hub_errors
from convrec.project.atomic import write_text
from convrec.project.errors import InputError
from convrec.project.paths import is_below

Kind = Literal["dataset", "model"]


class Pin(BaseModel):
    """The content of FOLDER.lock.json."""

    kind: Kind
    name: str
    commit: str
    patterns: list[str] | None


def lock_path(folder: Path) -> Path:
    """Return the path of a folder's lock file: beside the folder, so that it contains only the Hub's files."""
    return folder.with_name(f"{folder.name}.lock.json")


def _read_pin(folder: Path) -> Pin | None:
    """Return what a folder's lock file pins, or None without one."""
    path = lock_path(folder)
    if path.exists():
        try:
            return Pin.model_validate_json(path.read_bytes())
        except ValidationError:
            raise InputError(
                f"{path}: not a lock file of `convrec data fetch`; restore it from git, or remove it"
            ) from None
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"--to {folder}: already contains files, but there is no {path.name}; give a new folder")
    return None


def fetch(
    kind: Kind, name: str, folder: Path, *, revision: str | None = None, patterns: list[str] | None = None
) -> str:
    """Download the files of a Hub repository to `folder`, and return a message about what was done.

    Without a lock file, `revision` (default `main`) is resolved to a commit and pinned. With one, the pinned commit is
    used. `patterns` selects files (`*.csv`).

    Raises `InputError` if the Hub does not have the files, another commit or other files are pinned, or a file's hash
    differs, and `NoSpace` if the disk is full.
    """
    from huggingface_hub import HfApi, snapshot_download  # noqa: PLC0415  (slow)
    from huggingface_hub.utils import filter_repo_objects  # noqa: PLC0415  (slow)

    if not folder.name:
        raise InputError(f"--to {folder}: give a folder for the files")
    pin, hub = _read_pin(folder), HfApi()
    patterns = pin.patterns if pin and patterns is None else patterns
    revision = revision or (pin.commit if pin else DEFAULT_REVISION)
    with hub_errors(kind, name, revision):
        describe = hub.dataset_info if kind == "dataset" else hub.model_info
        info = describe(name, revision=revision)
    listed = [file.rfilename for file in info.siblings or []]
    files = sorted(filter_repo_objects(listed, allow_patterns=patterns))
    if leading := [path for path in files if not is_below(path)]:
        raise InputError(f"{kind} {name}: the hub lists {leading[0]!r}, which leads out of the folder; use another one")
    if not files or not info.sha:
        raise InputError(
            f"--include {patterns}: matches none of the {len(listed)} files of {kind} {name}; change the pattern"
        )
    asked = Pin(kind=kind, name=name, commit=info.sha, patterns=patterns)
    if pin is not None and pin != asked:
        raise InputError(
            f"{lock_path(folder)} pins {pin.kind} {pin.name} at commit {pin.commit}, --include {pin.patterns}; give "
            "another folder, or remove the lock and the folder to pin again"
        )
    write_text(lock_path(folder), asked.model_dump_json(indent=2) + "\n")
    chosen = [glob.escape(path) for path in files]
    with hub_errors(kind, name, info.sha):
        snapshot_download(name, repo_type=kind, revision=info.sha, local_dir=folder, allow_patterns=chosen)
        wrong = hub.verify_repo_checksums(name, repo_type=kind, revision=info.sha, local_dir=folder).mismatches
    for file in wrong:
        (folder / file["path"]).unlink()
    if wrong:
        raise InputError(
            f"{wrong[0]['path']}: its hash is {wrong[0]['actual']}, not {wrong[0]['expected']} as the hub lists it; "
            "fetch again"
        )
    shutil.rmtree(folder / ".cache")  # what the hub's library needs to resume a download
    size = sum((folder / path).stat().st_size for path in files) / 1e6
    return (
        f"{kind} {name} at commit {info.sha}: {len(files)} files, {size:,.1f} MB in {folder}, all checked. "
        f"{lock_path(folder)} pins the commit: commit that file to git"
    )
