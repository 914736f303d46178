"""The story of docs/loop.md: its very commands on one seed, without the line `both`. About 50 minutes on two cores."""

import os
import re

import pandas as pd
import pytest

from convrec.evaluation.comparison import paired_interval
from tests.small_project import ROOT, commit, make_project, run_in

pytestmark = pytest.mark.loop

COMMANDS = re.search(r"^```bash\n(.*?)^```$", (ROOT / "docs" / "loop.md").read_text(), re.M | re.S)[1]
HOURS = 2 * 3600  # of a slow machine


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> tuple[list[str], pd.DataFrame]:
    """Return what the benchmark printed, and each user's accepted items per answer by week."""
    project = make_project(tmp_path_factory.mktemp("loop") / "project")
    commit(project, "start")
    commands = COMMANDS.replace("--seeds 1", "--seeds 1 --weeks 6 --lines nothing live retraining")
    path = os.pathsep.join([str(ROOT), str(project / "src")])
    printed = run_in(project, "bash", "-euo", "pipefail", "-c", commands, timeout=HOURS, PYTHONPATH=path).stdout
    return printed.splitlines(), pd.read_csv(project / "runs" / "loop-users.csv")


def _after(lines: list[str], week: str) -> str:
    return next(line for line in lines if line.startswith(f"retraining, seed 1, {week}: "))


def test_a_change_of_audience_is_noticed_within_a_week(story):
    lines, _ = story
    assert "acceptance has not fallen" in _after(lines, "2022-03-25")
    assert "acceptance: alarm" in _after(lines, "2022-04-01")


def test_a_model_trained_on_feedback_is_better_in_the_experiment_and_is_promoted(story):
    lines, _ = story
    assert "version 2 is trained" in _after(lines, "2022-04-08")
    decided = next(line for line in lines if "better; " in line)
    assert "was promoted: users preferred it in the online experiment" in decided


@pytest.mark.parametrize("line", ["live", "retraining"])
def test_acceptance_rises_with_live_evidence_and_after_the_promotion(story, line):
    _, users = story
    last = users[users["week"] == users["week"].max()].sort_values("person").assign(prompt_id="")
    having, without = (last[last["line"] == side].reset_index(drop=True) for side in (line, "nothing"))
    assert paired_interval(having, without, "accepted", samples=2000, seed=0).low > 0


def test_without_the_loop_acceptance_stays_low(story):
    _, users = story
    weeks = users[users["line"] == "nothing"].groupby("week")["accepted"].mean()
    before, after = weeks[weeks.index < "2022-04-01"], weeks[weeks.index >= "2022-04-01"]
    assert after.max() < before.min()
