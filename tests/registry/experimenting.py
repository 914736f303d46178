"""The users of an experiment, who accept items by chance."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from convrec.feedback.records import Answer, Event, Shown, new_answer_id
from convrec.feedback.store import FeedbackStore
from convrec.serving.arms import Experiment, arm_of
from convrec.serving.interleaving import team_draft

START = datetime(2026, 1, 1, tzinfo=UTC)
ITEMS = [f"item-{number}" for number in range(6)]


def answer_users(store: FeedbackStore, experiment: Experiment, chances: tuple[float, float], num_answers: int) -> None:
    """Write the answers of a service, and what users accept: each item of the two versions with these chances.

    The ids of an experiment and of its answers are random; arms and teams do not depend on them here, so that every
    run of a test comes to the same verdict.
    """
    same = replace(experiment, id="experiment")
    rng = np.random.default_rng(3)
    answers, events = [], []
    for number in range(num_answers):
        time = START + timedelta(hours=number)
        answer_id = new_answer_id(time)
        user = f"user {rng.integers(num_answers // 2)}" if number % 10 else None
        arm = arm_of(same, user, f"answer {number}")
        if arm == "interleaved":
            picks = team_draft(ITEMS, ITEMS[::-1], 4, f"answer {number}")
            versions = [getattr(experiment, pick.team) for pick in picks]
            shown = tuple(
                Shown(arm, rank, pick.item_id, version)
                for rank, (pick, version) in enumerate(zip(picks, versions, strict=True), 1)
            )
        else:
            version = experiment.champion if arm == "champion" else experiment.challenger
            shown = tuple(Shown("", rank, item, version) for rank, item in enumerate(ITEMS[:4], 1))
        answers.append(Answer(answer_id, time, user, experiment.id, arm, False, 0.1, None, shown))
        for one in shown:
            if rng.random() < chances[one.version == experiment.challenger]:
                key = f"{answer_id}-{one.item_id}"
                events.append(Event(key, answer_id, one.list, one.item_id, "accepted", time))
    assert store.write(answers, events) == []
