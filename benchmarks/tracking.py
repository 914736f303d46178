"""Cost of recording 22 series per training step, compared with `mlflow.log_metrics` in the loop, with a real server.

    python -m benchmarks.tracking

`mlflow server` runs on 127.0.0.1 with a SQLite file. Every step works for `--step-seconds` in numpy and records 22
values. The output has the time of the recording call and the CPU time of the sending thread, per step and as shares
of the step, then the time of MLflow's own call. At the end, all points on the server are counted.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import mlflow
import numpy as np

from convrec.registry import tracking
from convrec.registry.tracking.journal import Delivery
from tests.registry.tracking.server import TrackingServer

MATRIX = 256  # size of the matrices of a step's work


def work(seconds: float) -> None:
    """Multiply matrices for this many seconds."""
    matrix = np.ones((MATRIX, MATRIX), dtype=np.float32)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        matrix = matrix @ matrix / MATRIX


def train(record: Callable[[dict[str, float], int], None], steps: int, series: int, seconds: float) -> list[float]:
    """Return the seconds of the recording call in every step."""
    taken = []
    for step in range(steps):
        work(seconds)
        values = {f"reward/rank_{number:02d}": np.sin(step + number).item() for number in range(series)}
        start = time.perf_counter()
        record(values, step)
        taken.append(time.perf_counter() - start)
    return taken


def count_points(run_id: str, series: int) -> int:
    """Return the number of points of a run on the server."""
    client = mlflow.MlflowClient()
    return sum(len(client.get_metric_history(run_id, f"reward/rank_{number:02d}")) for number in range(series))


def time_sending() -> list[float]:
    """Return a list that gets the CPU seconds of every send of a journal."""
    taken, send = [], Delivery.send

    def timed_send(delivery: Delivery) -> None:
        start = time.thread_time()
        try:
            send(delivery)
        finally:
            taken.append(time.thread_time() - start)

    Delivery.send = timed_send
    return taken


def measure_ours(options: argparse.Namespace) -> tuple[list[float], float, float, int]:
    """Return the seconds of every call, of all sends, and to close the run, and the number of points."""
    sends = time_sending()
    with tracking.stage_run("benchmark", {}, {}, Path("run.json")) as run:
        taken = train(run.log_metrics, options.steps, options.series, options.step_seconds)
        start = time.perf_counter()
    return taken, sum(sends), time.perf_counter() - start, count_points(run.run_id, options.series)


def measure_plain(options: argparse.Namespace) -> tuple[list[float], int]:
    """Return the seconds of every call of `mlflow.log_metrics`, and the points that arrived."""
    with mlflow.start_run(experiment_id=tracking.connect()) as run:
        taken = train(mlflow.log_metrics, options.plain_steps, options.series, options.step_seconds)
    return taken, count_points(run.info.run_id, options.series)


def main() -> None:
    """Measure both with one server, and print the times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--series", type=int, default=22)
    parser.add_argument("--step-seconds", type=float, default=0.1)
    parser.add_argument("--plain-steps", type=int, default=100, help="steps of the plain loop")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = TrackingServer(Path(folder))
        server.start()
        os.environ["MLFLOW_TRACKING_URI"] = server.uri
        os.chdir(folder)
        try:
            plain, plain_points = measure_plain(options)
            ours, sent, end, points = measure_ours(options)
        finally:
            server.kill()
    report(options, ours, sent, end, points, plain, plain_points)


def report(
    options: argparse.Namespace,
    ours: list[float],
    sent: float,
    end: float,
    points: int,
    plain: list[float],
    plain_points: int,
) -> None:
    """Print the results."""
    step = options.step_seconds
    call, sending, theirs = float(np.mean(ours)), sent / options.steps, float(np.mean(plain))
    longest = max(ours)
    sys.stdout.write(
        f"{options.steps} steps x {options.series} series, {step * 1000:.0f} ms a step: {points:,} of "
        f"{options.steps * options.series:,} points arrived; {end:.2f} s at the end\n"
        f"recording    {call * 1e6:8.0f} us a step ({call / step:.3%} of it), at most {longest * 1e3:.2f} ms\n"
        f"sender's CPU {sending * 1e6:8.0f} us a step ({sending / step:.3%} of it)\n"
        f"together     {(call + sending) * 1e6:8.0f} us a step ({(call + sending) / step:.3%} of it)\n"
        f"mlflow.log_metrics in the loop {theirs * 1e6:,.0f} us a step ({theirs / step:.1%} of it; "
        f"{options.plain_steps} steps, {plain_points:,} points): {theirs / call:,.0f} times the recording\n"
    )


if __name__ == "__main__":
    main()
