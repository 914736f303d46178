"""`convrec data restore`: the parameters and the data of a past run, back in the workspace. Nothing is lost."""

import os
import posixpath
import re
import subprocess
from pathlib import Path

from convrec.errors import InputError
from convrec.files.atomic import write_bytes
from convrec.files.yaml import parse_yaml
from convrec.paths import inside
from convrec.text import plain
from convrec.tracking import RecordedVersions, file_md5, recorded_versions
from convrec.tracking.versions import (
    GRAPH,
    LOCK,
    PARAMS,
    PREVIOUS,
    locked_stage,
    out_hashes,
    parse_mapping,
    raw_hashes,
    read_versions,
)
from convrec.versions import workspace
from convrec.versions.trust import check_contents, check_names
from convrec.versions.workspace import Out

_COMMIT = re.compile("[0-9a-f]{40,64}")  # the record's: else no command is made of it


def _git(*arguments: str, stdin: bytes | None = None) -> str | None:
    """Return what git prints, None where it fails."""
    try:
        result = subprocess.run(["git", *arguments], input=stdin, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return os.fsdecode(result.stdout).strip()


def _check_repositories() -> None:
    if not Path(".dvc").is_dir():
        raise InputError(f"{Path.cwd()}: no DVC repository (.dvc); run from the project's folder")
    if _git("rev-parse", "--git-dir") is None:
        raise InputError(
            f"{Path.cwd()}: no git repository, which would show what a restore replaces; "
            "run in a clone of the project, or `git init` and commit"
        )


def _is_committed(name: str, content: bytes) -> bool:
    """Return whether a commit holds this content at this path."""
    blob = _git("hash-object", "--stdin", f"--path={name}", stdin=content)
    history = ("log", "--all", "--full-history", "--max-count=1", "--format=%H")
    return blob is not None and bool(_git(*history, f"--find-object={blob}", "--", f":(literal){name}"))


def _not_in_git(names: list[str]) -> list[str]:
    """Return those of the existing files whose content no commit holds."""
    return [name for name in names if not _is_committed(name, Path(name).read_bytes())]


def _changed(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files whose content is not the present one."""
    return {
        name: content
        for name, content in files.items()
        if not Path(name).is_file() or Path(name).read_bytes() != content
    }


def _existing(files: dict[str, bytes]) -> list[str]:
    return [name for name in files if Path(name).exists()]


def _refuse_unsaved_files(names: list[str]) -> None:
    if names:
        raise InputError(
            f"{', '.join(names)}: the present content is in no commit and would be replaced; commit or stash it "
            f"(`git stash -u`), or give --force, which keeps it in {PREVIOUS}/"
        )


def _refuse_unsaved_data(outs: list[Out]) -> None:
    if unsaved := workspace.unsaved_outs(outs):
        raise InputError(
            f"{', '.join(unsaved)}: has changes that are not in DVC's cache and would be lost (also with --force); "
            "keep them first (`dvc add` for raw data, `dvc commit` for what a stage made), or remove them"
        )


def _metrics(outs: list[Out]) -> tuple[dict[str, bytes], list[str]]:
    """Return the changed metrics and plots, as far as DVC's cache holds the run's, and those that would be lost."""
    recorded = {out.path: out.hash for out in outs if not out.cached}
    present = {name: file_md5(Path(name)) for name in recorded if Path(name).is_file()}
    cache = workspace.cached_files({*recorded.values(), *present.values()})
    changed = _changed({name: cache[md5] for name, md5 in recorded.items() if md5 in cache})
    return changed, _not_in_git([name for name in _existing(changed) if present[name] not in cache])


def _refuse_missing(needed: list[Out], reason: str) -> None:
    """Raise where data that no stage can make again is nowhere."""
    missing = [out for out in needed if not out.available]
    if missing:
        names = ", ".join(f"{out.path} ({out.hash})" for out in missing)
        raise InputError(
            f"{names}: not in DVC's cache, and not fetched: {reason}; `dvc push` where the run was made, `dvc remote "
            "list` and `dvc fetch` here. Nothing was changed"
        )


def _untracked_raw(recorded: RecordedVersions) -> tuple[str, str, str | None] | None:
    """Return data.path of the run, its hash and the present one, where DVC does not track what lies there."""
    data = parse_mapping(recorded.files.get(PARAMS, b"")).get("data")
    path = posixpath.normpath(str(data.get("path", ""))) if isinstance(data, dict) else ""
    wanted = out_hashes(locked_stage(recorded.files).get("deps")).get(path)
    covered = any(
        f"{raw}/".startswith(f"{path}/") or f"{path}/".startswith(f"{raw}/") for raw in raw_hashes(recorded.files)
    )
    if wanted is None or covered:
        return None
    return path, wanted, workspace.present_hash(path)


def _keep(names: list[str]) -> Path:
    """Copy these files to a new folder in previous/, and return it."""
    number = 1 + max((int(path.name) for path in PREVIOUS.glob("*") if path.name.isdigit()), default=0)
    folder = PREVIOUS / str(number)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(Path(name).read_bytes())
    return folder


def _write(files: dict[str, bytes]) -> None:
    """Write the files, each whole or not at all."""
    for name, content in files.items():
        write_bytes(inside(Path(), name, "a file of the record"), content)


def _put(files: dict[str, bytes], outs: list[Out]) -> list[str]:
    """Write the files and check out the data; where that fails, the files are what they were."""
    before = {name: Path(name).read_bytes() for name in _existing(files)}
    added = files.keys() - before.keys()
    try:
        _write(files)
        return workspace.check_out(outs, added)
    except BaseException:
        _write(before)
        for name in added:
            Path(name).unlink(missing_ok=True)
        raise


def _code_lines(recorded: RecordedVersions, present: dict[str, bytes], up_to_date: bool) -> list[str]:
    """Return what is to say about the code, which a restore leaves as it is."""
    lines = []
    if GRAPH in recorded.files and recorded.files[GRAPH] != present.get(GRAPH):
        lines.append(f"{GRAPH} is not the run's; it belongs to the code and is left")
    head = _git("rev-parse", "HEAD")
    if _COMMIT.fullmatch(recorded.commit or "") and recorded.commit != head:
        lines.append(
            f"the code is not the run's: HEAD is {str(head)[:12]}; `git checkout {recorded.commit}` gets it "
            "(`git stash` first where git refuses, then restore again)"
        )
    elif recorded.dirty and not up_to_date:
        lines.append("the run had uncommitted changes to tracked files; those of the code are not recorded")
    return lines


def _status_line(changed: dict[str, list[str]], outs: list[Out]) -> str:
    """Return what `dvc repro` would do; raises `InputError` where restored raw data is not what it should be."""
    found = {path for name, paths in changed.items() if name.endswith(".dvc") for path in paths}
    if broken := [out.path for out in outs if out.raw and out.path in found]:
        raise InputError(f"{', '.join(broken)}: not the run's content after dvc checkout; see `dvc status`")
    if not changed:
        return "`dvc repro` has nothing to do: data, parameters and results are the run's"
    stages = [f"{name} ({', '.join(paths[:3])}{', …' if paths[3:] else ''})" for name, paths in changed.items()]
    return f"`dvc repro` would bring up to date, with what depends on them: {'; '.join(stages)}"


def _left_lines(recorded: RecordedVersions, present: dict[str, bytes], outs: list[Out]) -> list[str]:
    """Return what could not be restored, or is left though the run did not have it."""
    lines = [] if LOCK in recorded.files else [f"the run had no {LOCK} yet: the present one is left"]
    extra = [name for name in present if name.endswith(".dvc") and name not in recorded.files]
    if extra:
        lines.append(f"left, though the run did not have it: {', '.join(extra)}")
    gone = [out.path for out in outs if out.cached and not out.available]
    if gone:
        lines.append(f"neither in DVC's cache nor in a remote, to be made again by `dvc repro`: {', '.join(gone)}")
    return lines


def _raw_line(path: str, wanted: str, present: str | None) -> str:
    """Return whether raw data that DVC does not track is the run's."""
    if wanted == present:
        return f"{path} is not under DVC, so it is not restored, but its content is the run's"
    return (
        f"{path} is not under DVC and cannot be restored: the run's content was {wanted}, here it is "
        f"{present or 'missing'}; put the run's files there (`dvc add` keeps the next ones)"
    )


def restore(run_id: str, *, force: bool = False) -> str:
    """Bring parameters, lock and data of the workspace to those of a past run, and return what was done.

    A stage's run stands for its pipeline's, where that one finished. Data that the cache lacks is fetched from the
    default remote before anything is written. With `force`, files that no commit holds are kept in `previous/`; data
    that DVC's cache does not hold is never replaced. The code, dvc.yaml included, is left.

    Raises `InputError` where the run is not known or has no versions, where something would be lost, where raw data is
    neither in the cache nor in the remote, and where files that no commit holds could do more than name data and
    choose parameters (`versions.trust`). The workspace is then as it was.
    """
    _check_repositories()
    recorded = recorded_versions(run_id)
    present = read_versions()
    check_names(list(recorded.files), run_id)
    wanted = {name: content for name, content in recorded.files.items() if name != GRAPH}
    check_contents({name: text for name, text in wanted.items() if not _is_committed(name, text)}, present, run_id)
    for name, content in {**present, **wanted}.items():  # DVC, which reads them all, has no bounds
        parse_yaml(content, f"--run {run_id}: its {name}" if name in wanted else name, remedy="nothing is restored")
    files = _changed(wanted)
    unsaved = _not_in_git(_existing(files))
    if not force:
        _refuse_unsaved_files(unsaved)
    outs, reason = workspace.rehearse({**present, **wanted}, set(wanted))
    raw = _untracked_raw(recorded)
    made = out_hashes(locked_stage(wanted).get("outs")) if raw and raw[1] != raw[2] else {}
    _refuse_missing([out for out in outs if out.cached and (out.raw or out.path in made)], reason)
    metrics, lost = _metrics(outs)
    if not force:
        _refuse_unsaved_files(lost)
    unsaved += lost
    available = [out for out in outs if out.cached and out.available]
    with workspace.dvc_locks(available):
        _refuse_unsaved_data(available)
        kept = [f"kept in {_keep(unsaved)}/: {', '.join(unsaved)}"] if unsaved else []
        checked_out = _put({**files, **metrics}, available)
    changed = workspace.out_of_date()
    lines = [
        f"files written: {', '.join([*files, *metrics]) or 'none, all are the same'}",
        *kept,
        f"data brought back: {', '.join(checked_out) or 'none, all is the same'}",
        *_left_lines(recorded, present, outs),
        *([_raw_line(*raw)] if raw else []),
        *_code_lines(recorded, present, not changed),
        _status_line(changed, available),
    ]
    return "\n".join([f"Run {recorded.run_id} ({plain(recorded.name)})", *(f"  {line}" for line in lines)])
