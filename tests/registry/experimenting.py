"""The users of an experiment, who accept items by chance."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from convrec.service.arms import Experiment, arm_of
from convrec.service.feedback import Answer, Event, FeedbackStore, Shown, new_answer_id

START = datetime(2026, 1, 1, tzinfo=UTC)


def answer_users(store: FeedbackStore, experiment: Experiment, chances: tuple[float, float], num_answers: int) -> None:
    """Write the answers of a service, and what users accept: each item of the two versions with these chances.

    The ids of an experiment and of its answers are random; arms do not depend on them here, so that every run of a test
    comes to the same verdict.
    """
    same = replace(experiment, id="experiment")
    rng = np.random.default_rng(3)
    answers, events = [], []
    for number in range(num_answers):
        time = START + timedelta(hours=number)
        answer_id = new_answer_id(time)
        user = f"user {rng.integers(num_answers // 2)}" if number % 10 else None
        arm = arm_of(same, user, f"answer {number}")
        version = experiment.champion if arm == "champion" else experiment.challenger
        shown = tuple(Shown("", rank, f"item-{rank}", version) for rank in (1, 2, 3, 4))
        answers.append(Answer(answer_id, time, user, experiment.id, arm, 0.1, None, shown))
        for one in shown:
            if rng.random() < chances[arm == "challenger"]:
                key = f"{answer_id}-{one.item_id}"
                events.append(Event(key, answer_id, one.list, one.item_id, "accepted", time))
    store.write(answers, events)
