"""CPU time and peak memory of stages by number of rows, and what follows for 1, 10 and 100 times Reddit-v2.

The real stages `data` (source `reddit_movie`) and `demonstrations` (item similarity as the teacher, TF-IDF vectors) run
on samples of growing sizes, then the baselines and the scoring of `evaluate` do. Time is extrapolated by a + b n + c n²
and memory by a + b n, with coefficients of at least 0 fitted to the sizes.

    python -m benchmarks.scale [--turns 30000,60000,120000,240000] [--films 7404]

With `--interactions` it measures one large catalog instead: `data` (source `interactions`), the evidence, and each
baseline, of a log in which people have few of many items in common.

    python -m benchmarks.scale --interactions 300000 [--items 100000]
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from convrec.classical.crossfit import CrossFitted
from convrec.classical.evidence import Evidence
from convrec.classical.guidance import Guidance
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
LOG_SETTINGS = ("data.path=log", "data.interactions.prompts_per_user=3")  # few enough that no user is left out
LIKES, TASTES, OWN_TASTE = 12, 100, 0.8  # mean likes of a user; groups of items; share of them from a user's own group
WORDS = ("night", "river", "house", "stranger", "winter", "garden", "letter", "empire", "shadow", "harbour")
GENRES = ("Action", "Comedy", "Drama", "Horror", "Romance", "Western")


class Measured(NamedTuple):
    """CPU seconds and peak memory (GiB) of a process for a number of training rows."""

    rows: int
    seconds: float
    memory: float


def run_timed(project: Path, *command: str) -> tuple[float, float]:
    """Run a command in the project on one thread; return its CPU seconds and its peak memory in GiB."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": None if "--score" in command else subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=project, env=environment, **pipes)
    assert process.stderr
    log = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command}: status {status}\n{log[-2000:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024**2


def score_baselines() -> None:
    """Fit the evidence, and compute and score the baselines' lists in the current folder, as the stages do."""
    params, paths = load_params(), Paths()
    catalog, common = Catalog.read(paths.catalog), params.common
    train, validation = read_rows(paths.split("train")), read_rows(paths.split("validation"))
    rows, prompts = read_prompts(paths.split("test"), None)
    options = Options.of(**params.baseline_options())
    report("read", time.process_time())
    before = time.process_time()
    fitted = {"catalog": catalog, "embedder": options.embedder}
    parts = CrossFitted.fit(train, **fitted)
    guide = Guidance.fit(Evidence.fit(train, **fitted), parts, train, common.list_length, params.evidence_embedder())
    served = replace(guide, evidence=Evidence.fit([*train, *validation], **fitted))
    report("evidence", time.process_time() - before)
    before = time.process_time()
    for name, answers in baseline_lists(BASELINES, train, validation, prompts, catalog, options, (guide, served)):
        if isinstance(answers, Answers):
            texts = {row["prompt_id"]: text for row, text in zip(prompts, answers.lists, strict=True)}
            score_lists(texts, rows, catalog, common.list_length, common.cutoffs)
        report(name, time.process_time() - before)
        before = time.process_time()


def report(part: str, seconds: float) -> None:
    """Write what a part of this process took, and the peak of the process so far."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    sys.stdout.write(f"  {part:12} {seconds:6.0f} s, {memory:.2f} GiB\n")
    sys.stdout.flush()


def write_log(folder: Path, num_interactions: int, num_items: int) -> None:
    """Write ratings.csv and movies.csv: items by Zipf's law in groups, of which each user mostly likes one."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(num_interactions), rng.geometric(1 / LIKES, num_interactions))[:num_interactions]
    tastes, size = rng.integers(TASTES, size=num_interactions)[users], num_items // TASTES
    group = np.where(rng.random(num_interactions) < OWN_TASTE, tastes, rng.integers(TASTES, size=num_interactions))
    shares = 1 / np.arange(1, size + 1)
    items = group * size + rng.choice(size, num_interactions, p=shares / shares.sum())
    folder.mkdir()
    ratings, times = (
        rng.choice((5, 1), num_interactions, p=(0.9, 0.1)),
        rng.integers(10**9, 2 * 10**9, num_interactions),
    )
    log = {"userId": users, "movieId": items, "rating": ratings, "timestamp": times}
    pd.DataFrame(log).to_csv(folder / "ratings.csv", index=False)
    names = rng.choice(WORDS, (num_items, 2))
    titles = [f"{first} {second} {place} ({1930 + place % 90})".title() for place, (first, second) in enumerate(names)]
    catalog = {"movieId": range(num_items), "title": titles, "genres": rng.choice(GENRES, num_items)}
    pd.DataFrame(catalog).to_csv(folder / "movies.csv", index=False)


def measure_log(num_interactions: int, num_items: int) -> None:
    """Print what `data`, the evidence and the baselines take for a log."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        make_project(project)
        write_log(project / "log", num_interactions, num_items)
        settings = (f"--set={setting}" for setting in LOG_SETTINGS)
        run_timed(project, "convrec.cli", "profile", "movielens-100k", *settings)
        parts = [run_timed(project, "convrec.cli", "run", "data"), run_timed(project, "benchmarks.scale", "--score")]
        counts = json.loads((project / "results" / "data.json").read_text())
    for name, (seconds, memory) in zip(("data", "evidence and baselines"), parts, strict=True):
        sys.stdout.write(f"{name}: {seconds:.0f} s, {memory:.2f} GiB\n")
    rows, seconds = counts["train"]["rows"], sum(seconds for seconds, _ in parts)
    sys.stdout.write(f"{counts['catalog']:,} items, {rows:,} training rows: {seconds:.0f} s\n")


def make_project(project: Path) -> None:
    """Copy what a project needs to begin."""
    for name in ("profiles", "prompts"):
        shutil.copytree(ROOT / name, project / name)
    shutil.copy(ROOT / "dvc.yaml", project)


def measure(num_turns: int, num_films: int) -> dict[str, Measured]:
    """Return what each part took for a sample of this many turns."""
    found: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        make_project(project)
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
    parser.add_argument("--interactions", type=int, default=0, help="of the log of a large catalog")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--score", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.score:
        return score_baselines()
    if options.interactions:
        return measure_log(options.interactions, options.items)
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
