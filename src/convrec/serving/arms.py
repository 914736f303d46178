"""An online experiment, and the arm in which it answers a user."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

from convrec.errors import InputError
from convrec.serving.interleaving import CHALLENGER, CHAMPION

Kind = Literal["ab", "interleaving"]
KINDS: tuple[Kind, ...] = get_args(Kind)
INTERLEAVED = "interleaved"
ALPHA = 0.05  # of the confidence sequences
BETTER, WORSE, UNDECIDED = "better", "worse", "not decided"  # verdicts on the challenger


@dataclass(frozen=True)
class Experiment:
    """A challenger against the champion, both registered versions, on the users of the service.

    `share` is the share of the users whose answers the challenger writes (A/B), or takes part in (interleaving).
    `num_moves` is the number of the champion's moves when it started. Times are in UTC, ISO format. While it is
    running, `ended` is empty.
    """

    id: str
    kind: Kind
    champion: str
    challenger: str
    share: float
    started: str
    by: str
    num_moves: int = 0
    alpha: float = ALPHA
    ended: str = ""
    reason: str = ""

    @property
    def is_running(self) -> bool:
        return not self.ended

    def to_json(self) -> str:
        """Return the experiment as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Experiment":
        """Return the experiment of `to_json`. Raises `InputError` for any other text."""
        try:
            found = cls(**json.loads(text))
            types = {field.name: field.type for field in fields(cls)}
            numbers = all(isinstance(getattr(found, name), (int, float)) for name in ("share", "alpha", "num_moves"))
            texts = all(isinstance(getattr(found, name), str) for name, kind in types.items() if kind in (str, "str"))
            if not (numbers and texts and found.kind in KINDS and 0 < found.share <= 1 and 0 < found.alpha < 1):
                raise ValueError
        except (TypeError, ValueError):
            raise InputError(
                f"the registered model's tag `experiment` is not an experiment: {text!r:.80}; end it with `convrec "
                "experiment stop`"
            ) from None
        return found


def arm_of(experiment: Experiment, user_id: str | None, answer_id: str) -> str:
    """Return the arm of a user: "champion", or "challenger" (A/B) or "interleaved".

    SHA-256 of the experiment's id and the user's id decides, so a user stays in one arm in all processes, and another
    experiment divides the users anew. Without a user's id, the answer's id takes its place: such an answer counts as
    that of a user of its own.
    """
    key = f"{experiment.id}\n{'answer' if user_id is None else 'user'}\n{user_id or answer_id}"
    place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) / 2**64
    if place >= experiment.share:
        return CHAMPION
    return CHALLENGER if experiment.kind == "ab" else INTERLEAVED
