"""monitoring.yaml as a frozen model: the window, and the limits of the checks."""

from pathlib import Path

from pydantic import Field

from convrec.project.config.base import Section, Share, validated
from convrec.project.yaml import read_yaml

SETTINGS_FILE = Path("monitoring.yaml")


class SecondsLimit(Section):
    """A limit for a time in seconds."""

    max: float = Field(gt=0, description="an alarm if the whole 95 % interval is above this")
    min_sample: int = Field(ge=1, description="with a smaller sample, the check says: not enough data")


class ShareLimit(SecondsLimit):
    """A limit for a share or another figure between 0 and 1."""

    max: Share = Field(description="an alarm if the whole 95 % interval is above this")


class Checks(Section):
    """The checks, in the order of their report; those that are left out are not made."""

    conversations: ShareLimit | None = Field(None, title="Conversations against training (AUC)")
    named_items: ShareLimit | None = Field(None, title="Items that users name, distance to training")
    accepted_items: ShareLimit | None = Field(None, title="Accepted items, distance to training")
    accepted_before: ShareLimit | None = Field(None, title="Accepted items, distance to those before")
    new_items: ShareLimit | None = Field(None, title="New items among those named and accepted")
    acceptance: ShareLimit | None = Field(None, title="Fall of acceptances per answer")
    latency_p95_seconds: SecondsLimit | None = Field(None, title="Latency, 95th percentile in seconds")
    not_in_catalog: ShareLimit | None = Field(None, title="Answers with a wrong item")
    empty_answers: ShareLimit | None = Field(None, title="Empty answers")


class Monitoring(Section):
    """All fields of monitoring.yaml."""

    window_days: int = Field(ge=1, le=3660, description="the feedback that is checked: that of the last days")
    before_days: int = Field(ge=1, le=3660, description="the feedback before it, to compare acceptance with")
    training_months: int = Field(ge=1, le=1200, description="the training data to compare with: its last months")
    max_conversations: int = Field(ge=2, le=100_000, description="conversations drawn of each side to be compared")
    checks: Checks


def load_monitoring(root: Path = Path()) -> Monitoring:
    """Return the settings of a project's monitoring.yaml.

    Raises `InputError` if the file is missing, or with one line for each mistake: field, value and remedy.
    """
    path = root / SETTINGS_FILE
    return validated(Monitoring, read_yaml(path), str(path), "docs/monitoring.md")
