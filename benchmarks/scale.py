"""CPU time and peak memory of stages by number of rows, and what follows for 1, 10 and 100 times Reddit-v2.

The real stages `data` (source `reddit_movie`) and `demonstrations` (item similarity as the teacher, TF-IDF vectors) run
on samples of growing sizes, then the baselines and the scoring of `evaluate` do. Time is extrapolated by a + b n + c n²
and memory by a + b n, with coefficients of at least 0 fitted to the sizes.

    python -m benchmarks.scale [--turns 30000,60000,120000,240000] [--films 7404]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from convrec.data.catalog import Catalog
from convrec.data.conversations import read_prompts, read_rows
from convrec.evaluation.baselines import Answers, Options, baseline_lists
from convrec.evaluation.scoring import score_lists
from convrec.evaluation.systems import BASELINES
from convrec.project.config.params import load_params
from convrec.project.paths import Paths
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
    for _, answers in baseline_lists(BASELINES, train, validation, prompts, catalog, options):
        if isinstance(answers, Answers):
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


def extrapolate(rows: Sequence[float], values: Sequence[float], degree: int) -> list[float]:
    """Return the value at each scale of a polynomial with coefficients of at least 0, fitted to relative errors."""
    wanted = TRAINING_ROWS * np.array(SCALES)
    terms = np.vander(np.array(rows) / TRAINING_ROWS, degree + 1) / np.array(values)[:, None]
    coefficients, _ = nnls(terms, np.ones(len(rows)))
    return list(np.polyval(coefficients, wanted / TRAINING_ROWS))


def main() -> None:
    """Print each part's measurements, and the extrapolation to each scale."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", default="30000,60000,120000,240000", help="turns of the samples")
    parser.add_argument("--films", type=int, default=7404)
    parser.add_argument("--score", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.score:
        score_baselines()
        return
    samples = [measure(int(turns), options.films) for turns in options.turns.split(",")]
    for part in samples[0]:
        found = [sample[part] for sample in samples]
        for one in found:
            sys.stdout.write(f"{part}: {one.rows:,} rows, {one.seconds:.0f} s, {one.memory:.2f} GiB\n")
        rows = [one.rows for one in found]
        times = extrapolate(rows, [one.seconds for one in found], degree=2)
        memory = extrapolate(rows, [one.memory for one in found], degree=1)
        for scale, seconds, size in zip(SCALES, times, memory, strict=True):
            sys.stdout.write(f"  {scale:>3} x Reddit-v2: {seconds / 3600:.2f} h, {size:.0f} GiB\n")


if __name__ == "__main__":
    main()
