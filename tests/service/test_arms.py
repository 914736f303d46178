"""Experiments as JSON, and their arms."""

from collections import Counter
from dataclasses import replace

import pytest

from convrec.service.arms import Experiment, arm_of

AB = Experiment("ab-2-0a1b2c3d", "1", "2", 0.5, "2026-01-01T00:00:00+00:00", "ops")


def test_a_user_stays_in_one_arm():
    """Also in another process and release: the arms below are part of the recorded data."""
    arms = ["champion", "champion", "champion", "challenger", "champion", "champion"]
    for answer in ("any answer", "another answer"):
        assert [arm_of(AB, f"user {number}", answer) for number in range(6)] == arms


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_share_is_kept(share):
    """Within four standard deviations of 5,000 users."""
    arms = Counter(arm_of(replace(AB, share=share), f"user {number}", "") for number in range(5000))
    assert arms["challenger"] == pytest.approx(5000 * share, abs=4 * (5000 * share * (1 - share)) ** 0.5)


def test_another_experiment_divides_the_users_anew():
    other = replace(AB, id="ab-2-ffffffff")
    both = [(arm_of(AB, f"u{number}", ""), arm_of(other, f"u{number}", "")) for number in range(2000)]
    assert sum(one == two for one, two in both) == pytest.approx(1000, abs=90)


def test_answers_without_a_user_are_divided_by_their_own_id():
    arms = {arm_of(AB, None, f"{number:032x}") for number in range(20)}
    assert arms == {"champion", "challenger"}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", AB.to_json().replace("0.5", "5"),
             AB.to_json().replace('"1"', "1"), AB.to_json().replace("0.5", '"0.5"')]
)  # fmt: skip
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="validation error"):
        Experiment.from_json(text)
