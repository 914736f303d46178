"""DVC operations of `convrec data restore`: fetch versions, check that replaced data are safe, and check data out."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from convrec.errors import InputError
from convrec.paths import is_below
from convrec.tracking.versions import write_versions
from convrec.versions.trust import is_hash

if TYPE_CHECKING:
    from dvc.output import Output
    from dvc.repo import Repo


@dataclass(frozen=True)
class Out:
    """One file or folder that DVC tracks in the versions to restore."""

    path: str  # in the project
    hash: str
    raw: bool  # from a *.dvc file: no stage can make it again
    cached: bool  # kept in DVC's cache; otherwise a metric or plot in git
    available: bool  # its whole content is in the cache now


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress DVC's logs, which would show a traceback for errors that are reported in one line later."""
    loggers = [logging.getLogger(name) for name in ("dvc", "dvc_data", "dvc_objects")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _elsewhere(files: dict[str, bytes]) -> "Iterator[Repo]":
    """Yield a temporary DVC repository with these files and the project's cache, remotes and settings."""
    from dvc.repo import Repo  # noqa: PLC0415  (seconds)

    with TemporaryDirectory() as name, Repo() as repo:
        folder = Path(name)
        write_versions(files, folder)
        (folder / ".dvc").mkdir()
        if Path(".dvcignore").is_file():
            (folder / ".dvcignore").write_bytes(Path(".dvcignore").read_bytes())
        config: dict[str, Any] = {key: dict(value) for key, value in repo.config.items()}
        config["cache"]["dir"] = repo.cache.local_cache_dir
        config["core"] |= {"no_scm": True, "site_cache_dir": str(folder / ".dvc" / "site")}
        with Repo(str(folder), config=config) as other:
            yield other


def _fetch(repo: "Repo") -> str:
    """Fetch what is missing in the cache; return a reason for what may still be missing."""
    if not repo.config["core"].get("remote"):
        return "no default remote is configured"
    try:
        with _quiet():
            repo.fetch()
    except Exception as error:  # remotes have their own exceptions
        return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return "the remote does not have it"


def _check_listing(out: "Output") -> None:
    """Raise `InputError` if a folder's listing has a path outside the folder or the cache, where DVC would write."""
    if not (out.use_cache and out.hash_info.isdir):
        return
    try:
        with _quiet():
            listing = out.get_dir_cache()
    except Exception:  # remotes have their own exceptions; missing data are reported later
        return
    for parts, _, found in listing or ():
        if not is_below("/".join(parts)) or "" in parts or not is_hash(found.value if found else None):
            raise InputError(
                f"{out.def_path}: its listing {out.hash_info.value} contains {'/'.join(parts)!r}, which leads out of "
                "that folder or has an invalid hash; nothing is restored"
            )


def rehearse(files: dict[str, bytes], restored: set[str]) -> tuple[list[Out], str]:
    """Fetch the outs of the `restored` files among `files` to the cache; return them and why some are unavailable.

    The workspace is not changed. Raises `InputError` if DVC cannot read these files together.
    """
    from dvc.exceptions import DvcException  # noqa: PLC0415  (seconds)

    with _elsewhere(files) as repo:

        def inside(path: str) -> str:
            return Path(os.path.relpath(path, repo.root_dir)).as_posix()

        def lacks(out: "Output") -> bool:
            return out.use_cache and out.changed_cache()

        try:
            repo.index.check_graph()
            chosen = [out for out in repo.index.outs if out.hash_info and out.is_in_repo]
        except DvcException as error:
            raise InputError(
                f"the run's params.yaml, dvc.lock and *.dvc files do not fit the current dvc.yaml and *.dvc files "
                f"({' '.join(str(error).split())[:400]}); check out the run's commit first, or move the *.dvc file away"
            ) from None
        owners = {out: inside(out.stage.path) for out in chosen}
        chosen = [out for out in chosen if (owners[out] if out.stage.is_data_source else "dvc.lock") in restored]
        for out in chosen:
            _check_listing(out)
        reason = _fetch(repo) if any(lacks(out) for out in chosen) else ""
        outs = [
            Out(inside(out.fs_path), str(out.hash_info.value), out.stage.is_data_source, out.use_cache, not lacks(out))
            for out in chosen
        ]
    return outs, reason


def cached_files(hashes: set[str]) -> dict[str, bytes]:
    """Return the content, by hash, of the single files that are in DVC's cache."""
    from dvc.repo import Repo  # noqa: PLC0415  (seconds)

    with Repo() as repo:
        paths = {md5: Path(repo.cache.local.oid_to_path(md5)) for md5 in hashes if not md5.endswith(".dir")}
        return {md5: path.read_bytes() for md5, path in paths.items() if path.is_file()}


def _content(repo: "Repo", path: Path) -> tuple[str, set[str]]:
    """Return DVC's hash of a file or folder, and the hashes of the files in it."""
    from dvc_data.hashfile.build import build  # noqa: PLC0415  (seconds)
    from dvc_data.hashfile.tree import Tree  # noqa: PLC0415  (seconds)

    _, _, found = build(repo.cache.local, str(path.absolute()), repo.fs, "md5", ignore=repo.dvcignore, dry_run=True)
    value = str(found.hash_info.value)
    return value, {str(entry.value) for _, _, entry in found} if isinstance(found, Tree) else {value}


def present_hash(path: str) -> str | None:
    """Return DVC's hash of a file or folder in the workspace, None if it does not exist."""
    from dvc.repo import Repo  # noqa: PLC0415  (seconds)

    with Repo() as repo:
        return _content(repo, Path(path))[0] if Path(path).exists() else None


def unsaved_outs(outs: list[Out]) -> list[str]:
    """Return the paths whose current content would be replaced and is not completely in DVC's cache."""
    from dvc.repo import Repo  # noqa: PLC0415  (seconds)

    unsaved = []
    with Repo() as repo:
        for out in outs:
            if Path(out.path).exists():
                value, files = _content(repo, Path(out.path))
                if value != out.hash and set(repo.cache.local.oids_exist(list(files))) != files:
                    unsaved.append(out.path)
    return unsaved


@contextmanager
def dvc_locks(outs: list[Out]) -> Iterator[None]:
    """Hold DVC's locks of these paths; raises DVC's `LockError` while a stage uses one of them."""
    from dvc.repo import Repo  # noqa: PLC0415  (seconds)
    from dvc.rwlock import rwlock  # noqa: PLC0415  (seconds)

    with Repo() as repo:
        paths = [str(Path(out.path).absolute()) for out in outs]
        hardlink = repo.config["core"].get("hardlink_lock", False)
        with rwlock(repo.tmp_dir, repo.fs, "convrec data restore", read=[], write=paths, hardlink=hardlink):
            yield


def check_out(outs: list[Out], new_files: set[str]) -> list[str]:
    """Check out these outs in the workspace, and return the paths that changed.

    Raw data of a new *.dvc file are added to .gitignore, as `dvc add` does. Raises `InputError` if DVC fails.
    """
    from dvc.exceptions import DvcException  # noqa: PLC0415  (seconds)
    from dvc.repo import Repo  # noqa: PLC0415  (seconds)

    with Repo() as repo:
        try:
            with repo.scm_context(autostage=False, quiet=True):
                for stage in repo.index.stages:
                    if Path(os.path.relpath(stage.path, repo.root_dir)).as_posix() in new_files:
                        stage.ignore_outs()
            targets = [str(Path(out.path).absolute()) for out in outs]
            result = repo.checkout(targets=targets) if targets else {}
        except DvcException as error:
            raise InputError(
                f"dvc checkout: {error}; the files were put back, and `dvc checkout` restores their data"
            ) from None
        changed = [path for kind in ("added", "modified", "deleted") for path in result.get(kind, [])]
        return sorted(Path(os.path.relpath(path)).as_posix() for path in changed)


def out_of_date() -> dict[str, list[str]]:
    """Return the stages and *.dvc files that DVC reports as changed, each with its changed paths."""
    from dvc.repo import Repo  # noqa: PLC0415  (seconds)

    with Repo() as repo:
        found = {}
        for name, changes in repo.status().items():
            parts = [change for change in changes if isinstance(change, str)]
            for change in (change for change in changes if isinstance(change, dict)):
                for paths in change.values():
                    parts += list(paths) if isinstance(paths, dict) else [str(paths)]
            found[name] = parts
        return found
