"""`convrec data restore`: restores the parameters and data of a past run in the workspace, without losing anything."""

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

_COMMIT = re.compile("[0-9a-f]{40,64}")  # only such a recorded commit is put into a suggested command


def _git(*arguments: str, stdin: bytes | None = None) -> str | None:
    """Return git's output, None if it fails."""
    try:
        result = subprocess.run(["git", *arguments], input=stdin, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return os.fsdecode(result.stdout).strip()


def _check_repositories() -> None:
    if not Path(".dvc").is_dir():
        raise InputError(f"{Path.cwd()}: no DVC repository (.dvc); run this in the project's folder")
    if _git("rev-parse", "--git-dir") is None:
        raise InputError(
            f"{Path.cwd()}: not a git repository, which a restore needs to see what it would replace; "
            "run it in a clone of the project, or `git init` and commit"
        )


def _is_committed(name: str, content: bytes) -> bool:
    """Return whether any commit has this content at this path."""
    blob = _git("hash-object", "--stdin", f"--path={name}", stdin=content)
    history = ("log", "--all", "--full-history", "--max-count=1", "--format=%H")
    return blob is not None and bool(_git(*history, f"--find-object={blob}", "--", f":(literal){name}"))


def _not_in_git(names: list[str]) -> list[str]:
    """Return the existing files whose content is in no commit."""
    return [name for name in names if not _is_committed(name, Path(name).read_bytes())]


def _changed(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files whose content differs from that in the workspace."""
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
            f"{', '.join(names)}: the current content is in no commit and would be replaced; commit or stash it "
            f"(`git stash -u`), or give --force, which keeps a copy in {PREVIOUS}/"
        )


def _refuse_unsaved_data(outs: list[Out]) -> None:
    if unsaved := workspace.unsaved_outs(outs):
        raise InputError(
            f"{', '.join(unsaved)}: has changes that are not in DVC's cache and would be lost (also with --force); "
            "save them first (`dvc add` for raw data, `dvc commit` for outputs of a stage), or remove them"
        )


def _metrics(outs: list[Out]) -> tuple[dict[str, bytes], list[str]]:
    """Return the changed metrics and plots that are in DVC's cache, and the current ones that would be lost."""
    recorded = {out.path: out.hash for out in outs if not out.cached}
    present = {name: file_md5(Path(name)) for name in recorded if Path(name).is_file()}
    cache = workspace.cached_files({*recorded.values(), *present.values()})
    changed = _changed({name: cache[md5] for name, md5 in recorded.items() if md5 in cache})
    return changed, _not_in_git([name for name in _existing(changed) if present[name] not in cache])


def _refuse_missing(needed: list[Out], reason: str) -> None:
    """Raise `InputError` if data that no stage can make again is not available."""
    missing = [out for out in needed if not out.available]
    if missing:
        names = ", ".join(f"{out.path} ({out.hash})" for out in missing)
        raise InputError(
            f"{names}: not in DVC's cache, and could not be fetched ({reason}); run `dvc push` where the run was made, "
            "and check `dvc remote list` and `dvc fetch` here. Nothing was changed"
        )


def _untracked_raw(recorded: RecordedVersions) -> tuple[str, str, str | None] | None:
    """Return the run's data.path, its recorded hash and its current hash; None if DVC tracks that path."""
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
    """Copy these files to a new folder in previous/, and return the folder."""
    number = 1 + max((int(path.name) for path in PREVIOUS.glob("*") if path.name.isdigit()), default=0)
    folder = PREVIOUS / str(number)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(Path(name).read_bytes())
    return folder


def _write(files: dict[str, bytes]) -> None:
    """Write each file atomically."""
    for name, content in files.items():
        write_bytes(inside(Path(), name, "a file of the record"), content)


def _put(files: dict[str, bytes], outs: list[Out]) -> list[str]:
    """Write the files and check out the data; if that fails, restore the old files."""
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
    """Return remarks about the code, which a restore does not change."""
    lines = []
    if GRAPH in recorded.files and recorded.files[GRAPH] != present.get(GRAPH):
        lines.append(f"{GRAPH} differs from the run's; it belongs to the code and is not restored")
    head = _git("rev-parse", "HEAD")
    if _COMMIT.fullmatch(recorded.commit or "") and recorded.commit != head:
        lines.append(
            f"the code differs from the run's: HEAD is {str(head)[:12]}; `git checkout {recorded.commit}` gets it "
            "(if git refuses, run `git stash` first, then restore again)"
        )
    elif recorded.dirty and not up_to_date:
        lines.append("the run had uncommitted changes; changes of the code were not recorded")
    return lines


def _status_line(changed: dict[str, list[str]], outs: list[Out]) -> str:
    """Return what `dvc repro` would do; raises `InputError` if restored raw data differ from the run's."""
    found = {path for name, paths in changed.items() if name.endswith(".dvc") for path in paths}
    if broken := [out.path for out in outs if out.raw and out.path in found]:
        raise InputError(f"{', '.join(broken)}: differs from the run's content after dvc checkout; see `dvc status`")
    if not changed:
        return "`dvc repro` has nothing to do: data, parameters and results are the run's"
    stages = [f"{name} ({', '.join(paths[:3])}{', …' if paths[3:] else ''})" for name, paths in changed.items()]
    return f"`dvc repro` would run these stages and those that depend on them: {'; '.join(stages)}"


def _left_lines(recorded: RecordedVersions, present: dict[str, bytes], outs: list[Out]) -> list[str]:
    """Return remarks about files that could not be restored, and files that the run did not have."""
    lines = [] if LOCK in recorded.files else [f"the run had no {LOCK} yet: the current one stays"]
    extra = [name for name in present if name.endswith(".dvc") and name not in recorded.files]
    if extra:
        lines.append(f"not in the run, left unchanged: {', '.join(extra)}")
    gone = [out.path for out in outs if out.cached and not out.available]
    if gone:
        lines.append(f"not in DVC's cache or remote, `dvc repro` makes them again: {', '.join(gone)}")
    return lines


def _raw_line(path: str, wanted: str, present: str | None) -> str:
    """Return a remark about raw data that DVC does not track: same as in the run, or not."""
    if wanted == present:
        return f"{path} is not tracked by DVC and was not restored, but has the same content as in the run"
    return (
        f"{path} is not tracked by DVC and cannot be restored: its hash was {wanted} in the run, and is "
        f"{present or 'missing'} here; copy the run's files there (`dvc add` tracks the next version)"
    )


def restore(run_id: str, *, force: bool = False) -> str:
    """Restore parameters, lock and data of a past run in the workspace, and return a report of what was done.

    If the run is that of a stage, the versions of its finished pipeline run are restored. Missing data are fetched from
    the default remote before anything is written. With `force`, replaced files that are in no commit are copied to
    `previous/`; data that are not in DVC's cache are never replaced. The code, including dvc.yaml, is not changed.

    Raises `InputError` if the run is unknown or has no versions, if something would be lost, if raw data are neither in
    the cache nor in the remote, or if recorded files that are in no commit could do more than name data and set
    parameters (`versions.trust`). The workspace then stays unchanged.
    """
    _check_repositories()
    recorded = recorded_versions(run_id)
    present = read_versions()
    check_names(list(recorded.files), run_id)
    wanted = {name: content for name, content in recorded.files.items() if name != GRAPH}
    check_contents({name: text for name, text in wanted.items() if not _is_committed(name, text)}, present, run_id)
    for name, content in {**present, **wanted}.items():  # DVC reads them without limits
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
        f"files written: {', '.join([*files, *metrics]) or 'none, all are unchanged'}",
        *kept,
        f"data restored: {', '.join(checked_out) or 'none, all are unchanged'}",
        *_left_lines(recorded, present, outs),
        *([_raw_line(*raw)] if raw else []),
        *_code_lines(recorded, present, not changed),
        _status_line(changed, available),
    ]
    return "\n".join([f"Run {recorded.run_id} ({plain(recorded.name)})", *(f"  {line}" for line in lines)])
