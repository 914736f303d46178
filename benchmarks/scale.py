"""CPU time and peak memory of stages by number of rows, and what follows for 1, 10 and 100 times Reddit-v2.

The real stages `data` (source `reddit_movie`) and `demonstrations` (item similarity as the teacher, TF-IDF vectors) run
on samples of two sizes, then the baselines and the scoring of `evaluate` do. Time and memory are extrapolated by the
power law through the two sizes.

    python -m benchmarks.scale [--turns 60000,120000] [--films 7404]
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from convrec.config.params import load_params
from convrec.data.catalog import Catalog
from convrec.data.conversations import read_prompts, read_rows
from convrec.evaluation.baselines import Options, baseline_lists
from convrec.evaluation.scoring import score_lists
from convrec.evaluation.systems import BASELINES
from convrec.paths import Paths
from tests.data.sources.reddit_movie_sample import write_sample

TRAINING_ROWS = 380_000  # of Reddit-v2; a quarter of its prompts get demonstrations
SCALES = (1, 10, 100)
ROOT = Path(__file__).parent.parent
SETTINGS = (
    "data.source=reddit_movie",
    "data.path=dump",
    "demonstrations.until=null",
    "demonstrations.train_share=0.25",
    "demonstrations.teacher.kind=similarity",
    "demonstrations.teacher.fault_rate=0.0",
)


class Measured(NamedTuple):
    """CPU seconds and peak memory (GiB) of a process for a number of training rows."""

    rows: int
    seconds: float
    memory: float


def run_timed(project: Path, *command: str) -> tuple[float, float]:
    """Run a command in the project on one thread; return its CPU seconds and its peak memory in GiB."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=project, env=environment, **pipes)
    assert process.stderr
    log = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command}: status {status}\n{log[-2000:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024**2


def score_baselines() -> None:
    """Compute and score the baselines' lists in the current folder, as the stage `evaluate` does."""
    params, paths = load_params(), Paths()
    catalog, common = Catalog.read(paths.catalog), params.common
    train, validation = read_rows(paths.split("train")), read_rows(paths.split("validation"))
    rows, prompts = read_prompts(paths.split("test"), None)
    options = Options.of(**params.baseline_options())
    for answers in baseline_lists(BASELINES, train, validation, prompts, catalog, options).values():
        if answers is not None:
            texts = {row["prompt_id"]: text for row, text in zip(prompts, answers.lists, strict=True)}
            score_lists(texts, rows, catalog, common.list_length, common.cutoffs)


def measure(num_turns: int, num_films: int) -> dict[str, Measured]:
    """Return what each part took for a sample of this many turns."""
    found: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        for name in ("profiles", "prompts"):
            shutil.copytree(ROOT / name, project / name)
        write_sample(project / "dump", num_turns, num_films, seed=num_turns)
        run_timed(project, "convrec.cli", "profile", "embedded", *(f"--set={setting}" for setting in SETTINGS))
        parts = {
            "data": ("convrec.cli", "run", "data"),
            "demonstrations": ("convrec.cli", "run", "demonstrations"),
            "baselines and scores": ("benchmarks.scale", "--score"),
        }
        for part, command in parts.items():
            took = run_timed(project, *command)
            rows = json.loads((project / "results" / "data.json").read_text())["train"]["rows"]
            found[part] = Measured(rows, *took)
    return found


def power(small: float, large: float, growth: float) -> float:
    """Return the exponent of growth between two measurements, 0 to 2."""
    return min(2.0, max(0.0, math.log(large / small) / math.log(growth)))


def main() -> None:
    """Print a row for each part: both measurements, and the extrapolation to each scale."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", default="60000,120000", help="turns of the two samples")
    parser.add_argument("--films", type=int, default=7404)
    parser.add_argument("--score", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.score:
        score_baselines()
        return
    small, large = (measure(int(turns), options.films) for turns in options.turns.split(","))
    sys.stdout.write("part | rows | CPU s | GiB | rows | CPU s | GiB | exponents | extrapolated: hours, GiB\n")
    for part, less in small.items():
        more = large[part]
        growth = more.rows / less.rows
        slopes = [power(*pair, growth) for pair in zip(less[1:], more[1:], strict=True)]
        cells = [f"{less.rows:,} | {less.seconds:.0f} | {less.memory:.2f}"]
        cells += [f"{more.rows:,} | {more.seconds:.0f} | {more.memory:.2f}", "{:.2f}, {:.2f}".format(*slopes)]
        for scale in SCALES:
            factor = scale * TRAINING_ROWS / more.rows
            hours, memory = more.seconds * factor ** slopes[0] / 3600, more.memory * factor ** slopes[1]
            cells.append(f"{scale} x: {hours:.2f} h, {memory:.0f} GiB")
        sys.stdout.write(f"{part} | {' | '.join(cells)}\n")


if __name__ == "__main__":
    main()
