"""Acceptance by week, with live evidence and with retraining: monitoring, a refresh, an experiment, a promotion.

Simulated users ask a real service, whose audience changes after two weeks. Line `nothing` goes on with the champion.
Line `live` serves it with `--evidence live`. Line `retraining` goes through the loop: the alarm `acceptance` of
`convrec monitor`; `flows.refresh`, which learns from what users accepted in the two weeks since the change; an A/B test
of the new version; and `convrec promote`, if the test and the gates find it better. Line `both` does both; it
refreshes in the same week, with or without the alarm. All lines have the same users.

    python -m benchmarks.loop --project FOLDER --seeds 1 2 3 --lines nothing live retraining both

FOLDER is a project whose champion has learned from data of before the change (docs/loop.md has the commands). Each line
begins with this champion. The benchmark changes the project's params.yaml and registry. Lines and seeds that are not
run keep their rows in runs/loop-users.csv, so that each can be run by itself.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path

import mlflow
import pandas as pd
import polars as pl
from rich.console import Console

from benchmarks.simulate import Plan, simulate
from benchmarks.simulated_users import Audience
from convrec.evaluation.comparison import paired_interval
from convrec.pipeline.commands.feedback import EXIT_ALARM
from convrec.pipeline.commands.registry import EXIT_NOT_PROMOTED
from convrec.project.config.params import load_params
from convrec.project.config.profiles import change_params
from convrec.registry.moves import promote_version, read_state
from convrec.registry.tracking import connect
from convrec.registry.versions import CHAMPION, model_name

START, SHIFT = date(2022, 3, 18), date(2022, 4, 1)
WEEK = timedelta(days=7)
LINES = ("nothing", "live", "retraining", "both")
SAVED = Path("runs", "loop-users.csv")
# The feedback since the change, and the champion as the model that Rank-GRPO starts from. All else stays. More
# months of synthetic data would generate another world, and tell what the new audience likes.
LEARN_FROM_FEEDBACK = [
    "data.source=[synthetic, feedback]",
    f"demonstrations.until={START:%Y-%m}",
    f"rank_grpo.since={SHIFT:%Y-%m}",
    f"rank_grpo.start=models:/convrec-movies@{CHAMPION}",
    "rank_grpo.max_steps=250",
]
console = Console(highlight=False, markup=False, soft_wrap=True)
_COMMAND = [sys.executable, "-m", "convrec.cli"]


def _run(command: list[str], feedback: str | None = None, success: tuple[int, ...] = (0,)) -> str:
    environment = {**os.environ, "CONVREC_FEEDBACK_URL": feedback} if feedback else None
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in success:
        raise SystemExit(f"{' '.join(command[1:])}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def _convrec(*arguments: object, success: tuple[int, ...] = (0,)) -> str:
    return _run([*_COMMAND, *map(str, arguments)], success=success)


@contextmanager
def _serving(feedback: str, evidence: str) -> Iterator[str]:
    """Serve the champion, and yield the address."""
    log = Path("runs/loop-serve.log")
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as stream:
        options = ("--port", "0", "--save-conversations", "--feedback", feedback, "--evidence", evidence)
        process = subprocess.Popen([*_COMMAND, "serve", *options], stderr=stream)
    try:
        while not (found := re.search(r"serving (http://127\.0\.0\.1:\d+)", log.read_text())):
            if process.poll() is not None:
                raise SystemExit(log.read_text()[-2000:])
            time.sleep(0.2)
        yield found[1]
    finally:
        process.terminate()
        process.wait(60)


def _restore_champion(version: str) -> None:
    client = mlflow.MlflowClient()
    state = read_state(client)
    if state.champion != version:
        promote_version(client, state, version, "benchmarks.loop", "start of the benchmark")


class Loop:
    """What an operator does after each week: each step is one method, which returns the next and what was done."""

    def __init__(self, feedback: str):
        self._feedback, self._challenger = feedback, ""
        self._step = self._watch
        self.has_moved = False  # an experiment or the champion, which the service has to follow

    def after(self, until: date) -> str:
        """Act on the weeks before `until`, and return what was done."""
        self.has_moved = False
        return self._step(until)

    def _watch(self, until: date) -> str:
        watched = _convrec("monitor", "--until", until, "--feedback", self._feedback, success=(0, EXIT_ALARM))
        alarms = [line for line in watched.splitlines() if line.startswith("acceptance: alarm")]
        if not alarms:
            return self._retrain(until) if until >= SHIFT + 2 * WEEK else "acceptance has not fallen"
        self._step = self._retrain
        return f"{alarms[0]}; another week of feedback is awaited"

    def _retrain(self, until: date) -> str:
        """Learn from the feedback since the change: the last two days are the test, the two before validation."""
        change_params(LEARN_FROM_FEEDBACK)
        tested = f"{until - timedelta(days=2)}/{until - timedelta(days=1)}"
        started = time.monotonic()
        _run([sys.executable, "-m", "flows.refresh", "--test-period", tested], self._feedback)
        minutes = (time.monotonic() - started) / 60
        self._challenger = mlflow.MlflowClient().get_model_version_by_alias(model_name(), "challenger").version
        _convrec("experiment", "start", "--challenger", self._challenger)
        self._step, self.has_moved = self._decide, True
        return f"version {self._challenger} is trained ({minutes:.0f} min); an A/B test starts"

    def _decide(self, until: date) -> str:
        result = json.loads(_convrec("experiment", "status", "--json", "--feedback", self._feedback))
        if result["verdict"] in ("not decided", "withheld"):
            return f"{result['headline']}; the experiment goes on"
        _convrec("experiment", "stop", "--reason", result["verdict"], "--feedback", self._feedback)
        self._step, self.has_moved = self._rest, True
        if result["verdict"] == "worse":
            return result["headline"]
        promote = ("promote", "--version", self._challenger, "--by", "benchmarks.loop")
        decided = _convrec(*promote, success=(0, EXIT_NOT_PROMOTED))
        return f"{result['headline']}; {decided.splitlines()[0]}"

    def _rest(self, until: date) -> str:
        return ""


def run(options: argparse.Namespace, line: str, seed: int) -> pd.DataFrame:
    """Return the users' accepted items per answer in each week. Columns: week, person, accepted, seed, line."""
    _restore_champion(options.champion)
    database = Path(f"feedback/loop-{line}-{seed}.db").absolute()
    database.unlink(missing_ok=True)
    feedback = f"sqlite:///{database}"
    loop = Loop(feedback) if line in ("retraining", "both") else None
    audience, weeks = Audience(load_params(), seed, SHIFT), []
    with _serving(feedback, "live" if line in ("live", "both") else "trained") as url:
        for number in range(options.weeks):
            week = START + number * WEEK
            visits = simulate(Plan(url, options.users, 7, week, feedback=feedback), audience)
            weeks.append(_accepted(visits, seed, week))
            done = "" if loop is None else loop.after(week + WEEK)
            console.print(f"{line}, seed {seed}, {week}: {weeks[-1]['accepted'].mean():.2f} {done}".strip())
            time.sleep(options.follow_seconds if loop is not None and loop.has_moved else 0)
    return pd.concat(weeks).assign(seed=seed, line=line)


def _accepted(visits: pl.DataFrame, seed: int, week: date) -> pd.DataFrame:
    """Return each user's accepted items per answer."""
    accepted = visits.to_pandas().groupby("user_id")["num_accepted"].mean()
    persons = [f"{seed}-{user}" for user in accepted.index]
    return pd.DataFrame({"week": week, "person": persons, "accepted": accepted.to_numpy()})


def print_table(runs: pd.DataFrame) -> None:
    """Print acceptance by week and line, and the difference to doing nothing with its 95 % interval over users."""
    lines = [line for line in LINES if line in set(runs["line"])]
    console.print(f"| week from | {' | '.join(lines)} |\n|---|{'---:|' * len(lines)}")
    for week, rows in runs.sort_values("person").groupby("week"):
        sides = {line: rows[rows["line"] == line].reset_index(drop=True).assign(prompt_id="") for line in lines}
        console.print(f"| {week} | {' | '.join(_cell(sides[line], sides.get(LINES[0])) for line in lines)} |")


def _cell(side: pd.DataFrame, nothing: pd.DataFrame | None) -> str:
    mean = f"{side['accepted'].mean():.2f}"
    if nothing is None or nothing is side:
        return mean
    gain = paired_interval(side, nothing, "accepted", samples=2000, seed=0)
    return f"{mean} ({gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}])"


def main() -> None:
    """Run the lines for each seed, print the table, and save the users' figures in runs/loop-users.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--users", type=int, default=300)
    parser.add_argument("--weeks", type=int, default=7)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--lines", choices=LINES, nargs="+", default=LINES)
    parser.add_argument("--follow-seconds", type=float, default=20.0, help="wait until the service has followed")
    options = parser.parse_args()
    os.chdir(options.project)
    connect()
    options.champion = read_state(mlflow.MlflowClient()).champion
    for seed in options.seeds:
        for line in options.lines:
            runs = run(options, line, seed)
            if SAVED.is_file():
                saved = pd.read_csv(SAVED)
                runs = pd.concat([saved[(saved["line"] != line) | (saved["seed"] != seed)], runs])
            runs.to_csv(SAVED, index=False)
    runs = pd.read_csv(SAVED)
    console.print(f"\naccepted items per answer, seeds {sorted(set(runs['seed']))}; the audience changes on {SHIFT}")
    print_table(runs)


if __name__ == "__main__":
    main()
