"""Acceptance by week with and without the loop: monitoring, an experiment, a promotion.

Simulated users ask a real service, whose audience changes after two weeks. Without the loop, the champion stays. With
it, the alarm `acceptance` of `convrec monitor` starts an A/B test of the challenger, and a better challenger is
promoted. The challenger is a registered version, as `flows.refresh` makes one. Both runs have the same users.

    python -m benchmarks.loop --project FOLDER --champion 2 --challenger 1

FOLDER is a copy of a project of the embedded world, with its data, params.yaml, monitoring.yaml and registry: the
benchmark moves the registry's champion.
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
from statistics import mean
from typing import Any

import mlflow
import polars as pl
from rich.console import Console

from convrec.commands.monitoring import EXIT_ALARM
from convrec.registry.moves import promote_version, read_state
from convrec.tracking import connect

START, SHIFT = date(2022, 3, 18), date(2022, 4, 1)
WEEK = timedelta(days=7)
console = Console(highlight=False, markup=False, soft_wrap=True)
_COMMAND = [sys.executable, "-m", "convrec.cli"]


def _convrec(*arguments: object, success: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*_COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode not in success:
        raise SystemExit(f"convrec {' '.join(map(str, arguments))}: {done.stderr[-2000:]}")
    return done


@contextmanager
def _serving(feedback: str) -> Iterator[str]:
    """Serve the champion, and yield the address."""
    log = Path("runs/loop-serve.log")
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as stream:
        process = subprocess.Popen([*_COMMAND, "serve", "--port", "0", "--feedback", feedback], stderr=stream)
    try:
        while not (found := re.search(r"serving (http://127\.0\.0\.1:\d+)", log.read_text())):
            if process.poll() is not None:
                raise SystemExit(log.read_text()[-2000:])
            time.sleep(0.2)
        yield found[1]
    finally:
        process.terminate()
        process.wait(60)


def _make_champion(version: str, reason: str) -> None:
    client = mlflow.MlflowClient()
    state = read_state(client)
    if state.champion != version:
        promote_version(client, state, version, "benchmarks.loop", reason)


class Loop:
    """What an operator does after each week."""

    def __init__(self, challenger: str, feedback: str):
        self._challenger, self._feedback = challenger, feedback
        self._is_running = self._is_over = False
        self.has_acted = False  # so that the service has something to follow

    def after(self, week: date) -> str:
        """Look at the week that has ended, act, and return what was done."""
        self.has_acted = False
        if self._is_over:
            return ""
        if self._is_running:
            result = json.loads(_convrec("experiment", "status", "--json", "--feedback", self._feedback).stdout)
            if result["verdict"] == "not decided":
                return "the experiment goes on"
            _convrec("experiment", "stop", "--reason", result["verdict"], "--feedback", self._feedback)
            self._is_over = self.has_acted = True
            if result["verdict"] == "better":
                _make_champion(self._challenger, result["headline"])
            return result["headline"]
        until = week + WEEK
        watched = _convrec("monitor", "--until", until, "--feedback", self._feedback, success=(0, EXIT_ALARM))
        alarms = [line for line in watched.stdout.splitlines() if line.startswith("acceptance: alarm")]
        if not alarms:
            return "acceptance has not fallen"
        _convrec("experiment", "start", "--challenger", self._challenger, "--kind", "ab")
        self._is_running = self.has_acted = True
        return f"{alarms[0]}; an experiment starts"


def run(options: argparse.Namespace, seed: int, with_loop: bool) -> list[float]:
    """Return the accepted items per answer of each week."""
    _make_champion(options.champion, "start of the benchmark")
    database = Path(f"feedback/loop-{seed}-{with_loop}.db").absolute()
    database.unlink(missing_ok=True)
    feedback = f"sqlite:///{database}"
    loop, weeks = Loop(options.challenger, feedback), []
    with _serving(feedback) as url:
        for number in range(options.weeks):
            week = START + number * WEEK
            table = Path("runs/loop.parquet")
            users: tuple[Any, ...] = ("--users", options.users, "--seed", seed)
            times: tuple[Any, ...] = ("--start", week, "--days", 7, "--shift-date", SHIFT)
            _convrec("simulate", "--url", url, *users, *times, "--feedback", feedback, "--output", table)
            weeks.append(float(pl.read_parquet(table)["num_accepted"].mean()))  # type: ignore[arg-type]
            done = loop.after(week) if with_loop else ""
            console.print(
                f"seed {seed}, {'with' if with_loop else 'without'} the loop, {week}: {weeks[-1]:.2f} {done}",
            )
            time.sleep(options.follow_seconds if loop.has_acted else 0)
    return weeks


def main() -> None:
    """Run both for each seed, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--champion", required=True, metavar="N")
    parser.add_argument("--challenger", required=True, metavar="N")
    parser.add_argument("--users", type=int, default=60)
    parser.add_argument("--weeks", type=int, default=6)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--follow-seconds", type=float, default=20.0, help="wait until the service has followed")
    options = parser.parse_args()
    os.chdir(options.project)
    connect()
    means = {with_loop: [run(options, seed, with_loop) for seed in options.seeds] for with_loop in (False, True)}
    console.print(
        f"\naccepted items per answer, {options.users} users, seeds {options.seeds}; the audience changes on {SHIFT}"
    )
    console.print("| week from | without the loop | with the loop |\n|---|---:|---:|")
    for number in range(options.weeks):
        cells = [f"{mean(weeks[number] for weeks in means[with_loop]):.2f}" for with_loop in (False, True)]
        console.print(f"| {START + number * WEEK} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
