"""Reading YAML 1.2, as DVC does: under YAML 1.1, `1e-4` would be a string."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from convrec.project.errors import InputError
from convrec.project.paths import regular


def parse_yaml(content: bytes | str, where: str, *, keep_comments: bool = False) -> Any:
    """Return the value of a YAML text; with `keep_comments` one that can be changed and written with its comments.

    Raises `InputError`, which names `where`, for what is no YAML.
    """
    try:
        return YAML(typ="rt" if keep_comments else "safe", pure=True).load(content)
    except (YAMLError, ValueError) as error:  # ValueError: dates such as 2022-99-99
        raise InputError(f"{where}: not YAML ({' '.join(str(error).split())[:300]}); correct it") from None


def read_yaml(path: Path, *, keep_comments: bool = False) -> Any:
    """Return the mapping of a YAML file (see `parse_yaml`).

    Raises `InputError` for a file that is not there, and for one that holds anything else.
    """
    try:
        value = parse_yaml(regular(path).read_bytes(), str(path), keep_comments=keep_comments)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; run the command in the project folder") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a mapping of sections, found {type(value).__name__}")
    return value
