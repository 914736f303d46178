"""Profiles: named sets of parameters. `profiles/embedded.yaml` is the base; the others list only their changes."""

import io
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from convrec.project.atomic import write_text
from convrec.project.config.params import parse_params
from convrec.project.errors import InputError
from convrec.project.yaml import parse_yaml, read_yaml

FOLDER, BASE, TARGET = Path("profiles"), "embedded", Path("params.yaml")
PREVIOUS = Path("params.previous.yaml")


def _merge(base: dict[str, Any], changes: dict[str, Any], where: str, new: list[Any] | None = None) -> None:
    """Overwrite values of `base` in place; add the sections that replace a value to `new`, if given.

    Raises `InputError` for a key that `base` does not have, unless it is one of the sections in `new`.
    """
    for key, value in changes.items():
        if key not in base and not any(base is section for section in new or ()):
            raise InputError(f"{where}: unknown parameter {key!r}; profiles/{BASE}.yaml shows every parameter")
        if isinstance(base.get(key), dict) and isinstance(value, dict):
            _merge(base[key], value, f"{where}: {key}", new)
        else:
            base[key] = value
            if new is not None and isinstance(value, dict):
                new.append(base[key])


def compose(name: str, settings: list[str], folder: Path = FOLDER) -> Any:
    """Return the whole parameters of a profile with `KEY=VALUE` settings, comments kept.

    Raises `InputError` on an unknown profile, key, or a value that the parameters do not allow.
    """
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if not known:
        raise InputError(f"{folder}: no such folder, or it contains no profiles; run the command in the project folder")
    if name not in known:
        raise InputError(f"no profile {name!r}; there are {', '.join(known)}")
    params = read_yaml(folder / f"{BASE}.yaml", keep_comments=True)
    if name != BASE:
        _merge(params, read_yaml(folder / f"{name}.yaml"), f"profiles/{name}.yaml")
    params["common"]["profile"] = name
    _set(params, settings)
    return params


def _set(params: Any, settings: list[str]) -> None:
    """Change parameters in place by `KEY=VALUE`; several may give the fields of a section that is null."""
    new: list[Any] = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise InputError(f"--set {setting}: write KEY=VALUE, for instance data.path=../redial")
        changes = parse_yaml(value, f"--set {setting}", keep_comments=True)
        for part in reversed(key.split(".")):
            changes = {part: changes}
        _merge(params, changes, f"--set {setting}", new)


def apply_profile(name: str, settings: list[str]) -> str:
    """Write the profile to params.yaml, keep a different one beside it, and return a message with the changes."""
    if _write(compose(name, settings), f"profile {name}"):
        return f"params.yaml is now profile {name}; the one before is in {PREVIOUS}"
    return f"params.yaml is profile {name} already"


def change_params(settings: list[str]) -> str | None:
    """Change params.yaml by `KEY=VALUE`, comments kept, and return its new text; None if it has these values already.

    Raises `InputError` as `compose` does.
    """
    params = read_yaml(TARGET, keep_comments=True)
    _set(params, settings)
    return TARGET.read_text(encoding="utf-8") if _write(params, str(TARGET)) else None


def undo_change(changed: str | None) -> bool:
    """Undo the last `change_params`, which returned `changed`, unless somebody has edited the file since."""
    if changed is None or TARGET.read_text(encoding="utf-8") != changed:
        return False
    PREVIOUS.replace(TARGET)
    return True


def _write(params: Any, source: str) -> bool:
    """Write params.yaml if the parameters are allowed, keeping a different one beside it; tell whether it changed."""
    yaml, stream = YAML(), io.StringIO()
    yaml.width = 110
    yaml.representer.add_representer(
        type(None), lambda dumper, _: dumper.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    yaml.dump(params, stream)
    text = stream.getvalue()
    parse_params(parse_yaml(text, source), source)
    before = TARGET.read_text(encoding="utf-8") if TARGET.exists() else None
    if before is not None and before != text:
        write_text(PREVIOUS, before)
    if before != text:
        write_text(TARGET, text)
    return before != text
