"""`convrec data fetch` and `convrec fetch-model`: public files of the Hugging Face Hub, with pinned commit and hashes.

The commit and every file's SHA-256 are written to `FOLDER.lock.json` beside the folder. Commit this file to git: a
later fetch, on any machine, downloads that commit and accepts only those bytes. Files are downloaded to
`FOLDER.partial` first, where the Hub's library resumes an interrupted download, and are moved to the folder after the
check.

The raw Reddit-Movie dump for `data.source: reddit_movie` is the dataset `ZhankuiHe/reddit_movie_large_v1`.
"""

import glob
import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from convrec.generation.hub import DEFAULT_REVISION, hub_errors
from convrec.project.atomic import write_text
from convrec.project.errors import InputError
from convrec.project.paths import is_below

Kind = Literal["dataset", "model"]
_REMEDY = "restore the file from a backup, or, to accept the change, remove the lock and the folder to pin again"


class PinnedFile(BaseModel):
    """The size and the hash of a file."""

    size: int
    sha256: str


class LockFile(BaseModel):
    """The content of FOLDER.lock.json."""

    kind: Kind
    name: str
    revision: str  # as requested
    commit: str
    patterns: list[str] | None
    files: dict[str, PinnedFile]


def lock_path(folder: Path) -> Path:
    """Return the path of a folder's lock file: beside the folder, so that it contains only the Hub's files."""
    return folder.with_name(f"{folder.name}.lock.json")


def _check_paths(paths: Iterable[str], source: str) -> None:
    """Raise `InputError` for a path that leads out of its folder."""
    if leading := [path for path in paths if not is_below(path)]:
        raise InputError(f"{source} lists {leading[0]!r}, which leads out of the folder; take another source")


def _read_lock(path: Path) -> LockFile:
    try:
        lock = LockFile.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "content"
        raise InputError(
            f"{path}: not a lock file of `convrec data fetch` ({where}: {problem['msg']}); restore it from git, or "
            "remove it"
        ) from None
    _check_paths(lock.files, str(path))
    return lock


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file, or `none` if there is no such file."""
    if not path.is_file():
        return "none"
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _partial(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.partial")


def _download(kind: Kind, name: str, commit: str, folder: Path, files: list[str]) -> None:
    """Download these files of a commit to the partial folder."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415  (slow)

    patterns = [glob.escape(file) for file in files]
    with hub_errors(kind, name, commit):
        snapshot_download(name, repo_type=kind, revision=commit, local_dir=_partial(folder), allow_patterns=patterns)


def _reject(folder: Path, path: str, found: str, expected: str) -> None:
    """Remove the downloaded files, so that the next fetch starts from the beginning, and raise `InputError`."""
    shutil.rmtree(_partial(folder))
    raise InputError(f"{path}: its hash is {found}, not {expected}")


def _take(folder: Path, names: Iterable[str]) -> None:
    """Move checked files to the folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (_partial(folder) / name).replace(folder / name)
    shutil.rmtree(_partial(folder))


def _pin(kind: Kind, name: str, folder: Path, revision: str, patterns: list[str] | None) -> LockFile:
    """Download a revision, check it with the Hub's hashes, and return its lock."""
    from huggingface_hub import HfApi  # noqa: PLC0415  (slow)
    from huggingface_hub.utils import filter_repo_objects  # noqa: PLC0415  (slow)

    hub, partial = HfApi(), _partial(folder)
    with hub_errors(kind, name, revision):
        describe = hub.dataset_info if kind == "dataset" else hub.model_info
        info = describe(name, revision=revision)
    listed = [file.rfilename for file in info.siblings or []]
    chosen = sorted(filter_repo_objects(listed, allow_patterns=patterns))
    if not chosen or not info.sha:
        raise InputError(
            f"--include {patterns}: matches none of the {len(listed)} files of {kind} {name}; change the pattern"
        )
    _check_paths(chosen, f"{kind} {name}: the hub")
    _download(kind, name, info.sha, folder, chosen)
    with hub_errors(kind, name, info.sha):
        verified = hub.verify_repo_checksums(name, repo_type=kind, revision=info.sha, local_dir=partial)
    for wrong in verified.mismatches:
        _reject(folder, wrong["path"], wrong["actual"], f"{wrong['expected']} as the hub lists it; fetch again")
    files = {path: PinnedFile(size=(partial / path).stat().st_size, sha256=_digest(partial / path)) for path in chosen}
    return LockFile(kind=kind, name=name, revision=revision, commit=info.sha, patterns=patterns, files=files)


def _check_request(lock: LockFile, path: Path, name: str, revision: str | None, patterns: list[str] | None) -> None:
    """Raise `InputError` if the request differs from the pinned files."""
    comparisons: list[tuple[str, object, list[object]]] = [
        ("NAME", name, [f"{lock.kind} {lock.name}"]),
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
    """Download the pinned files that are missing or damaged, and return their names."""
    wanted = [name for name, file in lock.files.items() if _digest(folder / name) != file.sha256]
    if wanted:
        _download(lock.kind, lock.name, lock.commit, folder, wanted)
        for name in wanted:
            expected = lock.files[name].sha256
            if (found := _digest(_partial(folder) / name)) != expected:
                _reject(folder, name, found, f"{expected} of {lock_path(folder)}: the source changed; {_REMEDY}")
        _take(folder, wanted)
    return wanted


def _size(lock: LockFile) -> str:
    return f"{len(lock.files)} files, {sum(file.size for file in lock.files.values()) / 1e6:,.1f} MB"


def fetch(
    kind: Kind, name: str, folder: Path, *, revision: str | None = None, patterns: list[str] | None = None
) -> str:
    """Download the files of a Hub repository to `folder`, and return a message about what was done.

    Without a lock file, `revision` (default `main`) is resolved to a commit and pinned. With one, the pinned commit is
    used, and intact files are not downloaded again. `patterns` selects files (`*.csv`).

    Raises `InputError` if the Hub does not have the files, something else is pinned, or a file's hash differs, and
    `NoSpace` if the disk is full.
    """
    if not folder.name:
        raise InputError(f"--to {folder}: give a folder for the files")
    path = lock_path(folder)
    if path.exists():
        lock = _read_lock(path)
        _check_request(lock, path, f"{kind} {name}", revision, patterns)
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
    write_text(path, lock.model_dump_json(indent=2) + "\n")
    _take(folder, lock.files)
    return (
        f"{kind} {name}: {lock.revision} is commit {lock.commit}; {_size(lock)} in {folder}. Pinned in {path}: commit "
        "that file to git"
    )
