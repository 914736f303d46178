"""A service that records as fast as it can until it is killed: `python -m tests.service.feedback.faults JOURNAL URL`.

It prints the id of each recorded answer and of each recorded event.
"""

import sys
from pathlib import Path

from convrec.service.feedback import new_answer_id, recorder
from tests.answers import answer_now


def tell(kind: str, name: str) -> None:
    """Print what is recorded, at once."""
    sys.stdout.write(f"{kind} {name}\n")
    sys.stdout.flush()


def main() -> None:
    """Record until the end of the process."""
    recorder._LINGER = 0.01
    recording = recorder.FeedbackRecorder(Path(sys.argv[1]), sys.argv[2])
    while True:
        answer = answer_now("heat", "up", user_id="u")
        if recording.add_answer(answer):
            tell("answer", answer.answer_id)
        event_id = new_answer_id(answer.time)
        recording.add_event(answer.answer_id, "", "up", "accepted", event_id)
        tell("event", event_id)


if __name__ == "__main__":
    main()
