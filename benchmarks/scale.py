"""CPU time and peak memory of the stages that read all rows, and what follows for 1, 10 and 100 times Reddit-v2.

The real stages run on one thread, on conversations of about 1,000 characters in Parquet (source `files`): `data`,
`evidence`, `demonstrations` (item similarity as the teacher), and the baselines of `evaluate`. What is larger than the
samples is extrapolated, by a + b n with coefficients of at least 0, and is printed as such.

    python -m benchmarks.scale [--rows 50000,1000000,3000000] [--items 7404] [--stages data,evidence]

With `--interactions` it measures a log of a large catalog instead, in which people have few of many items in common.

    python -m benchmarks.scale --interactions 300000 [--items 100000] [--stages data,baselines]
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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from convrec.classical.crossfit import CrossFitted
from convrec.classical.evidence import Evidence
from convrec.classical.guidance import Guidance
from convrec.classical.told import Told
from convrec.data.catalog import Catalog
from convrec.data.conversations import read_prompts, read_rows
from convrec.data.schemas import spooled, write_conversations
from convrec.evaluation.baselines import Answers, Options, baseline_lists
from convrec.evaluation.scoring import score_lists
from convrec.evaluation.systems import BASELINES
from convrec.project.config.params import load_params
from convrec.project.paths import Paths

TRAINING_ROWS = 380_000  # of Reddit-v2
SCALES = (1, 10, 100)
ROOT = Path(__file__).parent.parent
STAGES = ("data", "evidence", "demonstrations", "baselines")
DEMONSTRATED, TESTED = 20_000, 2_000  # prompts with a demonstration, and test prompts of the baselines
SETTINGS = (
    "data.path=conversations",
    "data.validation_period=2021-12-18/2021-12-24",
    "data.test_period=2021-12-25/2021-12-31",
    "demonstrations.until=null",
)
LOG_SETTINGS = ("data.path=log", "data.interactions.prompts_per_user=3", "data.interactions.max_prompts=1000000000")
LIKES, TASTES, OWN_TASTE = 12, 100, 0.8  # mean likes of a user; groups of items; share of them from a user's own group
WORDS = ("night", "river", "house", "stranger", "winter", "garden", "letter", "empire", "shadow", "harbour")
GENRES = ("Action", "Comedy", "Drama", "Horror", "Romance", "Western")
SAID = "i want something like this but not too slow with a good ending please no musicals or sequels it was great"
TURNS = (("user", 90), ("assistant", 30), ("user", 40))  # words of each


def run_timed(project: Path, *command: str) -> tuple[float, float]:
    """Run a command in the project on one thread; return its CPU seconds and its peak memory in GiB."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **threads}
    pipes = {"stdout": None if "--score" in command else subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=project, env=environment, **pipes)
    assert process.stderr
    log, (_, status, usage) = process.stderr.read().decode(), os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command}: status {status}\n{log[-2000:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024**2


def score_baselines() -> None:
    """Fit the evidence, and compute and score the baselines' lists in the current folder, as the stages do."""
    params, paths = load_params(), Paths()
    catalog, common = Catalog.read(paths.catalog), params.common
    train, validation = read_rows(paths.split("train")), read_rows(paths.split("validation"))
    rows, prompts = read_prompts(paths.split("test"), TESTED)
    options = Options.of(**params.baseline_options())
    report("read", time.process_time())
    before = time.process_time()
    fitted = {"catalog": catalog, "embedder": options.embedder}
    told = Told.of(train, catalog)
    parts = CrossFitted.fit(told, **fitted)
    guide = Guidance.fit(Evidence.fit(told, **fitted), parts, train, common.list_length, params.evidence_embedder())
    served = replace(guide, evidence=Evidence.fit(told + Told.of(validation, catalog), **fitted))
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


def write_files(folder: Path, num_rows: int, num_films: int) -> None:
    """Write catalog.csv and conversations.parquet: invented words and films by Zipf's law, in the order of time."""
    rng = np.random.default_rng(num_rows)
    folder.mkdir()
    pairs = enumerate(rng.choice(WORDS, (num_films, 2)))
    titles = np.array([f"The {first} {second} {place}".title() for place, (first, second) in pairs], dtype=object)
    years, genres = 1930 + np.arange(num_films) % 90, ["|".join({*own}) for own in rng.choice(GENRES, (num_films, 2))]
    pd.DataFrame({"title": titles, "year": years, "genres": genres}).to_csv(folder / "catalog.csv", index=False)
    made = ["".join(own) for own in rng.choice([a + b for a in "bdfgklmnprstv" for b in "aeiou"], (20_000, 3))]
    words = np.array([*SAID.split(), *WORDS, *map(str.lower, GENRES), *made], dtype=object)
    days, ends = np.datetime64("2020-01-01") + np.arange(731), np.cumsum([size for _, size in TURNS])

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(num_rows):
            said, named = np.split(words[_zipf(rng, len(words), ends[-1])], ends[:-1]), titles[_zipf(rng, num_films, 2)]
            texts = [f"{' '.join(part)}. I know {film}" for part, film in zip(said, [*named, named[0]], strict=True)]
            messages = [{"role": role, "content": text} for (role, _), text in zip(TURNS, texts, strict=True)]
            liked = {*_zipf(rng, num_films, 1 + number % 4).tolist()}
            row = {"conversation_id": f"c{number}", "prompt_id": "", "user_id": f"u{rng.integers(num_rows // 2)}"}
            row |= {"date": str(days[number * len(days) // num_rows]), "messages": messages}
            truths = [{"title": titles[film], "year": int(years[film])} for film in liked]
            yield row | {"groundtruth": truths, "seen_titles": named.tolist()}

    write_conversations(spooled(rows()), folder / "conversations.parquet")


def _zipf(rng: np.random.Generator, number: int, size: int) -> np.ndarray:
    """Return draws of so many things, the first the most frequent: their ranks are log-uniform. Shape: (size,)."""
    return (np.exp(rng.random(size, dtype=np.float32) * np.log(number)) - 1).astype(np.int32)


def write_log(folder: Path, num_interactions: int, num_items: int) -> None:
    """Write ratings.csv and movies.csv: items by Zipf's law in groups, of which each user mostly likes one."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(num_interactions), rng.geometric(1 / LIKES, num_interactions))[:num_interactions]
    tastes, size = rng.integers(TASTES, size=num_interactions)[users], num_items // TASTES
    group = np.where(rng.random(num_interactions) < OWN_TASTE, tastes, rng.integers(TASTES, size=num_interactions))
    shares = 1 / np.arange(1, size + 1)
    items = group * size + rng.choice(size, num_interactions, p=shares / shares.sum())
    folder.mkdir()
    ratings = rng.choice((5, 1), num_interactions, p=(0.9, 0.1))
    times = rng.integers(10**9, 2 * 10**9, num_interactions)
    log = {"userId": users, "movieId": items, "rating": ratings, "timestamp": times}
    pd.DataFrame(log).to_csv(folder / "ratings.csv", index=False)
    pairs = enumerate(rng.choice(WORDS, (num_items, 2)))
    titles = [f"{first} {second} {place} ({1930 + place % 90})" for place, (first, second) in pairs]
    catalog = {"movieId": range(num_items), "title": titles, "genres": rng.choice(GENRES, num_items)}
    pd.DataFrame(catalog).to_csv(folder / "movies.csv", index=False)


def measure(number: int, num_items: int, stages: Sequence[str], is_log: bool) -> list[tuple[int, float, float]]:
    """Print and return training rows, CPU seconds and GiB of each stage for so many rows, of a log or conversations."""
    found = []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        project = Path(folder)
        for name in ("profiles", "prompts"):
            shutil.copytree(ROOT / name, project / name)
        shutil.copy(ROOT / "dvc.yaml", project)
        (write_log if is_log else write_files)(project / ("log" if is_log else "conversations"), number, num_items)
        share = f"demonstrations.train_share={min(1, DEMONSTRATED / number)}"
        settings = (f"--set={setting}" for setting in (*(LOG_SETTINGS if is_log else SETTINGS), share))
        run_timed(project, "convrec.cli", "profile", "movielens-100k" if is_log else "files", *settings)
        for stage in stages:
            command = ("benchmarks.scale", "--score") if stage == "baselines" else ("convrec.cli", "run", stage)
            took = run_timed(project, *command)
            rows = json.loads((project / "results" / "data.json").read_text())["train"]["rows"]
            found.append((rows, *took))
            sys.stdout.write(f"{stage}: {rows:,} rows, {took[0]:.0f} s, {took[1]:.2f} GiB\n")
            sys.stdout.flush()
    return found


def extrapolate(rows: Sequence[float], values: Sequence[float]) -> list[float]:
    """Return the value at each scale of a line with coefficients of at least 0, fitted to relative errors."""
    terms = np.vander(np.array(rows) / TRAINING_ROWS, 2) / np.array(values)[:, None]
    return list(np.polyval(nnls(terms, np.ones(len(rows)))[0], np.array(SCALES)))


def main() -> None:
    """Print each stage's measurements, and what follows for each scale."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="50000,1000000,3000000", help="rows of the samples")
    parser.add_argument("--interactions", type=int, default=0, help="of the log of a large catalog")
    parser.add_argument("--items", type=int, default=0, help="of the catalog: 7,404, or 100,000 of a log")
    parser.add_argument("--stages", default=",".join(STAGES), help="that are run, in this order")
    parser.add_argument("--score", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    stages = options.stages.split(",")
    if options.score:
        score_baselines()
    elif options.interactions:
        measure(options.interactions, options.items or 100_000, stages, True)
    else:
        samples = [measure(int(number), options.items or 7404, stages, False) for number in options.rows.split(",")]
        for stage, own in zip(stages, zip(*samples, strict=True), strict=True):
            rows, seconds, memory = zip(*own, strict=True)
            for scale, time_, size in zip(SCALES, extrapolate(rows, seconds), extrapolate(rows, memory), strict=True):
                kind = "extrapolated" if scale * TRAINING_ROWS > max(rows) else "between the samples"
                sys.stdout.write(f"{stage}, {scale} x Reddit-v2, {kind}: {time_ / 3600:.2f} h, {size:.1f} GiB\n")


if __name__ == "__main__":
    main()
