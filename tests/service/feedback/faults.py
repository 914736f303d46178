"""A service that records as fast as it can until it is killed: `python -m tests.service.feedback.faults JOURNAL URL`.

It prints the id of each recorded answer and of each recorded event.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

from convrec.service.feedback import Answer, Shown, new_answer_id, recorder


def tell(kind: str, name: str) -> None:
    """Print what is recorded, at once."""
    sys.stdout.write(f"{kind} {name}\n")
    sys.stdout.flush()


def main() -> None:
    """Record until the end of the process."""
    recorder._LINGER = 0.01
    recording = recorder.FeedbackRecorder(Path(sys.argv[1]), sys.argv[2])
    while True:
        now = datetime.now(UTC)
        shown = (Shown("", 1, "heat", "3"), Shown("", 2, "up", "3"))
        answer = Answer(new_answer_id(now), now, "u", None, None, 0.1, None, shown)
        if recording.add_answer(answer):
            tell("answer", answer.answer_id)
        event_id = new_answer_id(now)
        recording.add_event(answer.answer_id, "", "up", "accepted", event_id)
        tell("event", event_id)


if __name__ == "__main__":
    main()
