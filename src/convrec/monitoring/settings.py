"""monitoring.yaml as a frozen model: the window, the limits of the checks, and what an alarm does."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from convrec.config.base import Section, Share
from convrec.config.validation import validated
from convrec.files.yaml import read_yaml

SETTINGS_FILE = Path("monitoring.yaml")
_Sample = Annotated[int, Field(ge=1, description="with a smaller sample, the check says: not enough data")]


class ShareLimit(Section):
    """A limit for a share or another figure between 0 and 1."""

    max: Share = Field(description="an alarm if the whole 95 % interval is above this")
    min_sample: _Sample


class SecondsLimit(Section):
    """A limit for a time in seconds."""

    max: float = Field(gt=0, description="an alarm if the whole 95 % interval is above this")
    min_sample: _Sample


class Checks(Section):
    """The checks; those that are left out are not made."""

    conversations: ShareLimit | None = None
    named_items: ShareLimit | None = None
    accepted_items: ShareLimit | None = None
    accepted_before: ShareLimit | None = None
    shown_items: ShareLimit | None = None
    new_items: ShareLimit | None = None
    dead_items: ShareLimit | None = None
    acceptance: ShareLimit | None = None
    latency_p95_seconds: SecondsLimit | None = None
    not_in_catalog: ShareLimit | None = None
    empty_answers: ShareLimit | None = None


class Alarm(Section):
    """What Prefect does on an alarm, besides the event."""

    webhook: str | None = Field(description="the name of a Prefect webhook block that is called")
    refresh: bool = Field(description="whether the deployment refresh/monthly is run")


class Monitoring(Section):
    """All fields of monitoring.yaml."""

    window_days: int = Field(ge=1, le=3660, description="the feedback that is checked: that of the last days")
    before_days: int = Field(ge=1, le=3660, description="the feedback before it, to compare acceptance with")
    training_months: int = Field(ge=1, le=1200, description="the training data to compare with: its last months")
    max_conversations: int = Field(ge=2, le=100_000, description="conversations drawn of each side to be compared")
    checks: Checks
    alarm: Alarm


def parse_monitoring(raw: dict[str, Any], source: str) -> Monitoring:
    """Return the validated settings; raises `InputError` with one line for each mistake: field, value and remedy."""
    return validated(Monitoring, raw, source, "docs/monitoring.md")


def load_monitoring(path: Path = SETTINGS_FILE) -> Monitoring:
    """Return the settings of a monitoring.yaml; raises `InputError` if the file is missing or invalid."""
    return parse_monitoring(read_yaml(path), str(path))
