"""The result of a replay: what users would have accepted, by estimator."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from convrec.evaluation.comparison import Interval

HEADLINE = "dr"  # the estimator of the promotion gate
_TABLES = ("challenger", "differences")  # by estimator


@dataclass(frozen=True)
class Replay:
    """Accepted items per answer of a challenger by estimator, of the served champion, and the differences.

    `effective_size` is Kish's, in answers; `without_support` the share of the challenger's places whose item the
    service could not have shown there.
    """

    challenger: dict[str, Interval]
    champion: Interval
    differences: dict[str, Interval]
    effective_size: float
    without_support: float
    answers: int
    persons: int

    def to_json(self) -> dict[str, Any]:
        """Return the replay as JSON values."""
        tables = {name: {key: value._asdict() for key, value in getattr(self, name).items()} for name in _TABLES}
        return {**asdict(self), **tables, "champion": self.champion._asdict()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Replay":
        """Return the replay that `to_json` was called on."""
        tables = {name: {key: Interval(**interval) for key, interval in value[name].items()} for name in _TABLES}
        return cls(**{**value, **tables, "champion": Interval(**value["champion"])})
