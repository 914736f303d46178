"""Checks of a run's record before a restore, because anyone who can write to the tracking server can change it."""

import io
import posixpath
import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from convrec.errors import InputError
from convrec.files.yaml import parse_yaml
from convrec.paths import is_below
from convrec.tracking.versions import GRAPH, LOCK, PARAMS, parse_mapping

_HASH = re.compile(r"[0-9a-f]{32}(\.dir)?")
_DATA = "data"  # the folder for data, without code
_STAGE_KEYS = {"outs", "md5", "meta", "desc", "frozen"}
_OUT_KEYS = {"path", "md5", "hash", "size", "nfiles", "isexec", "desc", "type", "labels", "meta", "push", "remote"}
_RUNS_CODE = {
    "base_model.trust_remote_code": ("base_model.name", "base_model.revision", "rank_grpo.start")
    + ("rank_grpo.rewards.model",),
    "demonstrations.embedder.trust_remote_code": ("demonstrations.embedder.name", "demonstrations.embedder.revision"),
}
_SENDS = ("demonstrations.teacher.base_url", "rank_grpo.vllm_server_base_url")


def is_hash(value: object) -> bool:
    """Return whether a value is a DVC hash, which names a file in DVC's cache, and not a path."""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def check_names(names: list[str], run_id: str) -> None:
    """Raise `InputError` if a record contains files that no run records, such as hooks, settings or code."""
    for name in names:
        visible = not any(part.startswith(".") for part in name.split("/"))
        if name not in (PARAMS, GRAPH, LOCK) and not (name.endswith(".dvc") and visible and is_below(name)):
            raise InputError(
                f"--run {run_id}: its record contains {name!r}, which no run records, so someone has changed it; "
                "nothing is restored"
            )


def check_contents(files: dict[str, bytes], present: dict[str, bytes], run_id: str) -> None:
    """Raise `InputError` if files of a record could do more than name data and set parameters.

    `files` are the recorded files that are in no commit, `present` the files of the workspace.
    """
    where = f"--run {run_id}: no commit here contains its"
    for name, content in files.items():
        value = _plain_mapping(content, f"{where} {name}")
        if name == PARAMS:
            _check_parameters(value, parse_mapping(present.get(PARAMS, b"")), f"{where} {name}")
        elif name == LOCK:
            stages = value.get("stages")
            for stage in stages.values() if isinstance(stages, dict) else ():
                _check_hashes(stage, f"{where} {name}")
        elif name.endswith(".dvc"):
            _check_raw(name, value, parse_mapping(present.get(name, b"")), f"{where} {name}")


def _plain_mapping(content: bytes, what: str) -> dict[str, Any]:
    """Return a file's mapping; raises `InputError` if DVC, which reads it with libyaml, could get another one."""
    what, remedy = f"{what}, which is not a plain YAML mapping", "nothing is restored"
    value = parse_yaml(content, what, remedy=remedy)
    try:
        text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()
        if isinstance(value, dict) and value and value == YAML(typ="safe").load(text):
            return value
    except (YAMLError, ValueError, RecursionError):  # libyaml does not accept it
        pass
    raise InputError(f"{what}; {remedy}")


def _outs(stage: Any) -> list[Any]:
    outs = stage.get("outs") if isinstance(stage, dict) else None
    return outs if isinstance(outs, list) else []


def _check_hashes(stage: Any, what: str) -> None:
    for out in _outs(stage):
        if not isinstance(out, dict) or not is_hash(out.get("md5")) or "files" in out:
            raise InputError(f"{what}, and its entry {out!r:.200} has no valid file hash; nothing is restored")


def _check_raw(name: str, value: dict[str, Any], present: dict[str, Any], what: str) -> None:
    """Check a `*.dvc` file: it may only name data by hash, below data/ or where the workspace already has them."""
    _check_hashes(value, what)
    more = {key for key in value if key not in _STAGE_KEYS and value[key] != present.get(key)}
    more |= {key for out in _outs(value) for key in out if key not in _OUT_KEYS}
    if more:
        raise InputError(
            f"{what}, which has {', '.join(sorted(map(str, more)))}, which is more than its own data; {_REMEDY}"
        )
    paths = [out.get("path") for out in _outs(value)]
    if paths == [out.get("path") for out in _outs(present) if isinstance(out, dict)]:
        return
    for path in paths:
        whole = posixpath.normpath(posixpath.join(posixpath.dirname(name), str(path)))
        visible = not any(part.startswith(".") for part in whole.split("/"))
        if not (isinstance(path, str) and is_below(path) and visible and whole.startswith(f"{_DATA}/")):
            raise InputError(f"{what}, whose data would be at {path!r}, but new data must be below {_DATA}/; {_REMEDY}")


def _check_parameters(recorded: dict[str, Any], present: dict[str, Any], what: str) -> None:
    names = [name for name in _SENDS if _value(recorded, name) is not None]
    for switch, models in _RUNS_CODE.items():
        if _value(recorded, switch) not in (None, False):
            names += [switch, *models]
    for name in names:
        value = _value(recorded, name)
        if value != _value(present, name):
            raise InputError(
                f"{what}, which sets {name} = {value!r}: this could run foreign code, or send data and keys "
                f"elsewhere; if you trust it, set it in {PARAMS} yourself, then restore again with --force"
            )


def _value(params: Any, name: str) -> Any:
    """Return the parameter with a dotted name, None if there is none."""
    for part in name.split("."):
        params = params.get(part) if isinstance(params, dict) else None
    return params


_REMEDY = "check out the run's commit, which must contain it, then restore again"
