"""Validation of the settings files beside params.yaml, with errors that name the field, its value and the remedy."""

from typing import Any, TypeVar

from pydantic import ValidationError

from convrec.project.config.base import Section
from convrec.project.errors import InputError

Settings = TypeVar("Settings", bound=Section)


def validated(kind: type[Settings], raw: dict[str, Any], source: str, page: str) -> Settings:
    """Return the settings; `source` is the file, `page` the page of docs/ that shows its fields.

    Raises `InputError` with one line for each mistake.
    """
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        lines = [_explain(dict(mistake), page) for mistake in error.errors()]
        raise InputError("\n".join(f"{source}: {line}" for line in lines)) from None


def _explain(error: dict[str, Any], page: str) -> str:
    location = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{location}: unknown field; remove it, or see {page} for its name"
    if error["type"] == "missing":
        return f"{location}: missing; add it ({page} shows every field)"
    if error["type"] == "value_error":
        return f"{location}: {error['ctx']['error']}"
    return f"{location} = {error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}"
