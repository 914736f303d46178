"""Workspaces for parallel runs: clones of the project that share DVC's cache."""

import fcntl
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from convrec.errors import InputError, Unavailable

logger = logging.getLogger(__name__)

FOLDER_VARIABLE, REPOSITORY_VARIABLE, BRANCH_VARIABLE = "CONVREC_WORKSPACES", "CONVREC_REPOSITORY", "CONVREC_BRANCH"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_IDENTITY = ("-c", "user.name=convrec", "-c", "user.email=convrec@localhost")  # for a stash, if git has no identity
_ABSENT = (
    "does not exist",
    "does not appear to be a git repository",
    "not found in upstream",
    "couldn't find remote ref",
)
_CACHE = ".cache"  # DVC's cache, shared by the workspaces beside it
_LOCK = Path(".dvc") / "tmp" / "convrec.lock"


@contextmanager
def lock_folder(root: Path = Path()) -> Iterator[None]:
    """Lock the workspace for one flow run; the lock ends with the process.

    Raises `Unavailable` while another run holds it.
    """
    path = root / _LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise Unavailable(
                f"another run is using this folder (process {file.read().strip() or 'unknown'}); wait for its end, or "
                "use another folder: `convrec workspace NAME` creates one, `dvc exp run --temp` for an experiment"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def hold_stage(stage: str, root: Path = Path()) -> None:
    """Wait until no other process runs this stage in this folder, then lock it until this process ends.

    The stage of a killed run may still be writing its last checkpoint.
    """
    path = root / ".dvc" / "tmp" / f"convrec.{stage}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("another process is still running %s in this folder; waiting for its end", stage)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _git(*arguments: str, cwd: Path | None = None) -> str:
    """Run git in `cwd`, never in a repository above it.

    Raises `InputError` with git's message if a repository or branch does not exist, and `Unavailable` for other errors.
    """
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    if cwd is not None:
        environment["GIT_CEILING_DIRECTORIES"] = str(cwd.parent)
    done = subprocess.run(["git", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        words = " ".join(done.stderr.split())[-400:]
        kind = InputError if any(absent in words for absent in _ABSENT) else Unavailable
        raise kind(f"git {arguments[0]} failed ({words}); check {REPOSITORY_VARIABLE} and {BRANCH_VARIABLE}")
    return done.stdout.strip()


def _clone(repository: str, branch: str | None, target: Path, cache: Path) -> None:
    """Clone atomically into the target."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
    try:
        _git("clone", "--quiet", *(["--branch", branch] if branch else []), "--", repository, str(partial))
        if not (partial / ".dvc").is_dir():
            raise InputError(
                f"{REPOSITORY_VARIABLE} = {repository!r} has no .dvc folder; give a repository of this project"
            )
        subprocess.run(
            [sys.executable, "-m", "dvc", "cache", "dir", "--quiet", "--local", str(cache)], cwd=partial, check=True
        )
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _update(target: Path, repository: str, branch: str | None) -> None:
    """Update a clone to the newest commit; changes of tracked files by runs are kept in git's stash."""
    _git("remote", "set-url", "origin", repository, cwd=target)
    _git("fetch", "--quiet", "origin", *([branch] if branch else []), cwd=target)
    newest = _git("rev-parse", "FETCH_HEAD", cwd=target)
    if newest == _git("rev-parse", "HEAD", cwd=target):
        return
    if _git("status", "--porcelain", "--untracked-files=no", cwd=target):
        _git(*_IDENTITY, "stash", "push", "--quiet", "--message", f"before {newest}", cwd=target)
    _git("reset", "--quiet", "--hard", newest, cwd=target)


def prepare_workspace(name: str, folder: Path, repository: str, branch: str | None) -> Path:
    """Return the folder of a workspace: a clone of the repository at its newest commit, created if necessary.

    If the commit is new, changes of tracked files by runs (dvc.lock, metrics) are moved to git's stash. DVC's cache,
    checkpoints and records stay, so that unchanged stages are not run again. Raises `InputError` for an invalid name,
    and `Unavailable` if the repository cannot be reached.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"workspace {name!r}: give letters, digits, dots, dashes and underscores")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder.resolve() / name
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists() and not (target / ".git").is_dir():
            raise InputError(f"{target} is not a git clone; remove it, or give another workspace name")
        if target.exists():
            with lock_folder(target):
                _update(target, repository, branch)
        else:
            _clone(repository, branch, target, folder.resolve() / _CACHE)
    return target
