"""What the sections of params.yaml and the settings files beside it have in common."""

from collections.abc import Iterable
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from convrec.project.errors import InputError
from convrec.project.paths import is_below

LARGEST = 10**9  # upper bound of whole numbers that cost time, not memory
Whole = Annotated[int, Field(le=LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Month = Annotated[str, Field(pattern=r"^\d{4}-(0[1-9]|1[0-2])$")]


def _file_below(name: str) -> str:
    if not is_below(name):
        raise ValueError(f"{name!r} is outside its folder; name a file in that folder, without '..'")
    return name


def _without_secrets(url: str) -> str:
    place, _, query = url.partition("?")
    if query or "@" in place.split("//", 1)[-1].split("/", 1)[0]:
        raise ValueError("contains a user, a password or a query, which would be recorded; set keys in the environment")
    return url


FileBelow = Annotated[str, AfterValidator(_file_below)]
Url = Annotated[str, AfterValidator(_without_secrets)]

LEAST_PROMPT = 64  # tokens; fewer leave no room for the conversation beside chat template and instruction


class Unkeyed:
    """Marks a field that does not change what these stages train; without names, what any stage trains.

    A training is found again, finished or interrupted, whatever the value of such a field (see `project.code`).
    """

    def __init__(self, *stages: str):
        self._stages = stages

    def covers(self, stage: str) -> bool:
        """Return whether the mark is for this stage."""
        return not self._stages or stage in self._stages


class Section(BaseModel):
    """A section of params.yaml: no unknown keys, no silent conversions, no inf or NaN, no later changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())

    def only(self, names: Iterable[str]) -> Self:
        """Return the section with these fields alone, by dotted name; it has no attributes for the others."""
        inner: dict[str, set[str]] = {}
        for first, _, rest in (name.partition(".") for name in names):
            inner.setdefault(first, set()).add(rest)
        found = {first: getattr(self, first) for first in inner}
        return self.model_construct(
            **{first: value if "" in inner[first] else value.only(inner[first]) for first, value in found.items()}
        )

    def keyed(self, stage: str) -> dict[str, Any]:
        """Return the fields that can change what a stage trains: those that are not `Unkeyed`."""
        fields = type(self).model_fields
        return {
            name: value.keyed(stage) if isinstance(value, Section) else value
            for name, value in self
            if not any(isinstance(mark, Unkeyed) and mark.covers(stage) for mark in fields[name].metadata)
        }


Settings = TypeVar("Settings", bound=Section)


def validated(kind: type[Settings], raw: dict[str, Any], source: str, page: str) -> Settings:
    """Return the settings; `source` is the file, `page` the page or profile that shows its fields.

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
    if error["type"] == "value_error":  # one of several sections has no location, and names its fields itself
        return f"{location}: {error['ctx']['error']}" if location else str(error["ctx"]["error"])
    return f"{location} = {error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}"
