"""`convrec data fetch` and `convrec fetch-model`: public files of the Hugging Face Hub, with pinned commit and hashes.

The commit and every file's SHA-256 are written to `FOLDER.lock.json` beside the folder. Commit this file to git: a
later fetch, on any machine, downloads that commit and accepts only those bytes. Files are downloaded to
`FOLDER.partial` first, where an interrupted fetch finds complete files again, and are moved to the folder after the
check.

The raw Reddit-Movie dump for `data.source: reddit_movie` is the dataset `ZhankuiHe/reddit_movie_large_v1`.
"""

import glob
import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from convrec.errors import InputError, NoSpace
from convrec.files.atomic import write_text
from convrec.models.hub import DEFAULT_REVISION, hub_errors
from convrec.paths import is_below

Kind = Literal["dataset", "model"]


@dataclass(frozen=True)
class LockFile:
    """The content of FOLDER.lock.json."""

    kind: str
    name: str
    revision: str  # as requested
    commit: str
    patterns: list[str] | None
    files: dict[str, dict[str, int | str]]  # path in the folder -> size, sha256


def lock_path(folder: Path) -> Path:
    """Return the path of a folder's lock file: beside the folder, so that it contains only the Hub's files."""
    return folder.with_name(f"{folder.name}.lock.json")


def _read_lock(path: Path) -> LockFile:
    try:
        lock = LockFile(**json.loads(path.read_text(encoding="utf-8")))
        sound = all(isinstance(file["size"], int) and file["sha256"] for file in lock.files.values())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path}: not a lock file of `convrec data fetch` ({error}); restore it from git, or remove it"
        ) from None
    if not sound or not all(map(is_below, lock.files)):
        raise InputError(f"{path}: a size, a hash or a path in it is invalid; restore it from git, or remove it")
    return lock


def _write_lock(path: Path, lock: LockFile) -> None:
    write_text(path, json.dumps(asdict(lock), indent=2, ensure_ascii=False) + "\n")


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def _blob_id(path: Path) -> str:
    """Return the file's git blob id (SHA-1)."""
    total = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            total.update(chunk)
    return total.hexdigest()


def _is_whole(path: Path, file: dict[str, int | str]) -> bool:
    return path.is_file() and path.stat().st_size == file["size"] and _digest(path, "sha256") == file["sha256"]


def _download(kind: Kind, name: str, commit: str, patterns: list[str] | None, partial: Path) -> None:
    from huggingface_hub import snapshot_download  # noqa: PLC0415  (slow)

    with hub_errors(kind, name, commit):
        snapshot_download(name, repo_type=kind, revision=commit, local_dir=partial, allow_patterns=patterns)


def _check_space(folder: Path, needed: int) -> None:
    existing = next(parent for parent in folder.absolute().parents if parent.exists())
    if (free := shutil.disk_usage(existing).free) < needed:
        raise NoSpace(f"{folder}: {needed:,} bytes are needed, but only {free:,} are free; make room")


def _pin(kind: Kind, name: str, folder: Path, revision: str, patterns: list[str] | None) -> LockFile:
    """Download a revision to the partial folder, check it with the Hub's hashes, and return its lock."""
    from huggingface_hub import HfApi  # noqa: PLC0415  (slow)
    from huggingface_hub.utils import filter_repo_objects  # noqa: PLC0415  (slow)

    with hub_errors(kind, name, revision):
        hub = HfApi()
        describe = hub.dataset_info if kind == "dataset" else hub.model_info
        info = describe(name, revision=revision, files_metadata=True)
    listed = {file.rfilename: file for file in info.siblings or []}
    chosen = sorted(filter_repo_objects(listed, allow_patterns=patterns))
    if not chosen or not info.sha:
        raise InputError(
            f"--include {patterns}: matches none of the {len(listed)} files of {kind} {name}; change the pattern"
        )
    if leading := [path for path in chosen if not is_below(path)]:
        raise InputError(
            f"{kind} {name}: the hub lists {leading[0]!r}, which leads out of {folder}; take another source"
        )
    partial = _partial(folder)
    _check_space(folder, sum(listed[path].size or 0 for path in chosen))
    _download(kind, name, info.sha, patterns, partial)
    files: dict[str, dict[str, int | str]] = {}
    for path in chosen:
        there, here = listed[path], partial / path
        expected = there.lfs.sha256 if there.lfs else there.blob_id
        found = _digest(here, "sha256") if there.lfs else _blob_id(here)
        if expected and found != expected:
            _reject(partial, path, found, expected, "as the hub lists it; fetch again")
        files[path] = {"size": here.stat().st_size, "sha256": _digest(here, "sha256")}
    return LockFile(kind, name, revision, info.sha, patterns, files)


def _partial(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.partial")


def _reject(partial: Path, path: str, found: str, expected: str, remedy: str) -> None:
    """Remove the downloaded files, so that the next fetch starts from the beginning, and raise `InputError`."""
    shutil.rmtree(partial)
    raise InputError(f"{path}: its hash is {found}, not {expected} {remedy}")


def _take(partial: Path, folder: Path, names: list[str]) -> None:
    """Move checked files to the folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (partial / name).replace(folder / name)
    shutil.rmtree(partial)


def _check_request(
    lock: LockFile, path: Path, kind: str, name: str, revision: str | None, patterns: list[str] | None
) -> None:
    """Raise `InputError` if the request differs from the pinned files."""
    comparisons: list[tuple[str, object, list[object]]] = [
        ("NAME", f"{kind} {name}", [f"{lock.kind} {lock.name}"]),
        ("--revision", revision, [None, lock.revision, lock.commit]),
        ("--include", patterns, [None, lock.patterns]),
    ]
    for option, asked, pinned in comparisons:
        if asked not in pinned:
            raise InputError(
                f"{option} {asked}: {path} pins {pinned[-1]}; give another folder, or remove the lock and the folder "
                "to pin again"
            )


def _repair(lock: LockFile, folder: Path) -> list[str]:
    """Fetch the pinned files that are missing or damaged, and return their names."""
    wanted = [name for name, file in lock.files.items() if not _is_whole(folder / name, file)]
    if not wanted:
        return []
    partial = _partial(folder)
    _check_space(folder, sum(int(lock.files[name]["size"]) for name in wanted))
    kind: Kind = "dataset" if lock.kind == "dataset" else "model"
    _download(kind, lock.name, lock.commit, [glob.escape(name) for name in wanted], partial)
    for name in wanted:
        if not (partial / name).is_file():
            raise InputError(f"{name}: {kind} {lock.name} no longer has it at {lock.commit}; see {lock_path(folder)}")
        expected = str(lock.files[name]["sha256"])
        if (found := _digest(partial / name, "sha256")) != expected:
            remedy = "the source changed; restore the file from a backup, or, to accept the change, remove the "
            _reject(partial, name, found, expected, f"of {lock_path(folder)}: {remedy}lock and the folder to pin again")
    _take(partial, folder, wanted)
    return wanted


def _size(lock: LockFile) -> str:
    return f"{len(lock.files)} files, {sum(int(file['size']) for file in lock.files.values()) / 1e6:,.1f} MB"


def fetch(
    kind: Kind, name: str, folder: Path, *, revision: str | None = None, patterns: list[str] | None = None
) -> str:
    """Download the files of a Hub repository to `folder`, and return a message about what was done.

    Without a lock file, `revision` (default `main`) is resolved to a commit and pinned. With one, the pinned commit is
    used, and intact files are not downloaded again. `patterns` selects files (`*.csv`).

    Raises `InputError` if the Hub does not have the files, something else is pinned, or a file's hash differs, and
    `NoSpace` if the disk is too small.
    """
    if not folder.name:
        raise InputError(f"--to {folder}: give a folder for the files")
    path = lock_path(folder)
    if path.exists():
        lock = _read_lock(path)
        _check_request(lock, path, kind, name, revision, patterns)
        fetched = _repair(lock, folder)
        extra = sum(file.is_file() for file in folder.rglob("*")) - len(lock.files)
        others = f"; {extra} other files are in the folder" if extra else ""
        return (
            f"{kind} {name} at commit {lock.commit}, pinned by {path}: {_size(lock)} in {folder}, all checked; "
            f"downloaded now: {', '.join(fetched) or 'none'}{others}"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"--to {folder}: already contains files, but there is no {path.name}; give a new folder")
    lock = _pin(kind, name, folder, revision or DEFAULT_REVISION, patterns)
    _write_lock(path, lock)
    _take(_partial(folder), folder, list(lock.files))
    return (
        f"{kind} {name}: {lock.revision} is commit {lock.commit}; {_size(lock)} in {folder}. Pinned in {path}: commit "
        "that file to git"
    )
