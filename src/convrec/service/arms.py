"""An online experiment, and the arm in which it answers a user."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter

CHAMPION, CHALLENGER = "champion", "challenger"  # the arms
BETTER, WORSE, UNDECIDED, WITHHELD = "better", "worse", "not decided", "withheld"  # verdicts on the challenger
_Share = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True)
class Experiment:
    """An A/B test of a challenger against the champion, both registered versions, on the users of the service.

    `share` is the share of the users with the challenger. `num_moves` is the number of the champion's moves when it
    started. `alpha` is that of the confidence sequences. Times are in UTC, ISO format. While it is running, `ended` is
    empty.
    """

    id: str
    champion: str
    challenger: str
    share: _Share
    started: str
    by: str
    num_moves: int = 0
    alpha: _Share = 0.05
    ended: str = ""
    reason: str = ""

    @property
    def is_running(self) -> bool:
        return not self.ended

    def is_served(self, versions: Mapping[str, str]) -> bool:
        """Return whether both versions of the experiment are loaded; `versions` are those of the roles."""
        return (versions.get(CHAMPION), versions.get(CHALLENGER)) == (self.champion, self.challenger)

    def to_json(self) -> str:
        """Return the experiment as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Experiment":
        """Return the experiment of `to_json`. Raises `ValueError` for any other text."""
        return _SCHEMA.validate_json(text, strict=True)


_SCHEMA = TypeAdapter(Experiment)


def arm_of(experiment: Experiment, user_id: str | None, answer_id: str) -> str:
    """Return the arm of a user.

    SHA-256 of the experiment's id and the user's id decides, so a user stays in one arm in all processes, and another
    experiment divides the users anew. Without a user's id, the answer's id takes its place: such an answer counts as
    that of a user of its own.
    """
    key = f"{experiment.id}\n{'answer' if user_id is None else 'user'}\n{user_id or answer_id}"
    place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) / 2**64
    return CHALLENGER if place < experiment.share else CHAMPION
