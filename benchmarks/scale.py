"""CPU time and peak memory of the stages that read all rows, and what follows for 1, 10 and 100 times Reddit-v2.

The real stages run on one thread, on conversations of about 1,000 characters in Parquet (source `files`): `data`,
`evidence`, `demonstrations` (item similarity as the teacher), and the baselines and scores of `evaluate`. What is larger
than the samples is extrapolated, by a + b n with coefficients of at least 0, and is printed as such.

    python -m benchmarks.scale [--rows 50000,1000000,3000000] [--films 7404] [--stages data,evidence]

With `--interactions` it measures a log of a large catalog instead, in which people have few of many items in common:
the stages, and the evidence and each baseline on their own.

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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.optimize import nnls

from convrec.classical.crossfit import CrossFitted
from convrec.classical.evidence import Evidence
from convrec.classical.guidance import Guidance
from convrec.classical.told import Told
from convrec.data.catalog import Catalog
from convrec.data.conversations import read_prompts, read_rows
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
PART = 20_000  # conversations that are written at a time


class Measured(NamedTuple):
    """CPU seconds and peak memory (GiB) of a process for a number of training rows."""

    rows: int
    seconds: float
    memory: float


def run_timed(project: Path, *command: str) -> tuple[float, float]:
    """Run a command in the project on one thread; return its CPU seconds and its peak memory in GiB."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **threads}
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


def write_conversations(folder: Path, num_rows: int, num_films: int) -> None:
    """Write catalog.csv and conversations.parquet: invented words and films by Zipf's law, two years of a thread each."""
    rng = np.random.default_rng(num_rows)
    folder.mkdir()
    titles = [f"The {first} {second} {place}".title() for place, (first, second) in enumerate(_pairs(rng, num_films))]
    years, genres = 1930 + np.arange(num_films) % 90, rng.choice(GENRES, (num_films, 2))
    catalog = {"title": titles, "year": years, "genres": ["|".join({*own}) for own in genres]}
    pd.DataFrame(catalog).to_csv(folder / "catalog.csv", index=False)
    syllables = np.array([a + b for a in "bdfgklmnprstv" for b in "aeiou"])
    made = ["".join(own) for own in rng.choice(syllables, (20_000, 3))]
    words = np.array([*SAID.split(), *WORDS, *map(str.lower, GENRES), *made], dtype=object)
    films, days = np.array(titles, dtype=object), np.datetime64("2020-01-01") + np.arange(731)
    writer, ends = None, np.cumsum([size for _, size in TURNS])
    for start in range(0, num_rows, PART):
        said = words[_zipf(rng, len(words), (PART, ends[-1]))]
        named, liked = _zipf(rng, num_films, (PART, 2)), _zipf(rng, num_films, (PART, 4))
        rows = []
        for number in range(min(PART, num_rows - start)):
            one, other = films[named[number]]
            texts = [" ".join(part) for part in np.split(said[number], ends[:-1])]
            texts = [f"{texts[0]}. I liked {one}", f"{texts[1]}. Try {other}?", texts[2]]
            messages = [{"role": role, "content": text} for (role, _), text in zip(TURNS, texts, strict=True)]
            truths = [{"title": titles[i], "year": int(years[i])} for i in set(liked[number, : 1 + number % 4])]
            row = {"conversation_id": f"c{start + number}", "user_id": f"u{rng.integers(num_rows // 2)}"}
            row |= {"date": str(days[(start + number) * len(days) // num_rows]), "messages": messages}
            rows.append(row | {"groundtruth": truths, "seen_titles": [one, other]})
        table = pa.Table.from_pylist(rows)
        writer = writer or pq.ParquetWriter(folder / "conversations.parquet", table.schema)
        writer.write_table(table)
    if writer:
        writer.close()


def _pairs(rng: np.random.Generator, number: int) -> np.ndarray:
    return rng.choice(WORDS, (number, 2))


def _zipf(rng: np.random.Generator, number: int, shape: tuple[int, int]) -> np.ndarray:
    """Return draws of so many things, the first the most frequent: their ranks are log-uniform. Shape: `shape`."""
    return (np.exp(rng.random(shape, dtype=np.float32) * np.log(number)) - 1).astype(np.int32)


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
    titles = [f"{first} {second} {place} ({1930 + place % 90})" for place, (first, second) in enumerate(_pairs(rng, num_items))]
    catalog = {"movieId": range(num_items), "title": titles, "genres": rng.choice(GENRES, num_items)}
    pd.DataFrame(catalog).to_csv(folder / "movies.csv", index=False)


def make_project(project: Path) -> None:
    """Copy what a project needs to begin."""
    for name in ("profiles", "prompts"):
        shutil.copytree(ROOT / name, project / name)
    shutil.copy(ROOT / "dvc.yaml", project)


def measure(number: int, num_items: int, stages: Sequence[str], is_log: bool) -> dict[str, Measured]:
    """Print and return what each stage took for so many rows, or rows of a log."""
    found: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("CONVREC_SCRATCH")) as folder:
        project = Path(folder)
        make_project(project)
        if is_log:
            write_log(project / "log", number, num_items)
        else:
            write_conversations(project / "conversations", number, num_items)
        share = f"demonstrations.train_share={min(1, DEMONSTRATED / number)}"
        settings = (f"--set={setting}" for setting in (*(LOG_SETTINGS if is_log else SETTINGS), share))
        run_timed(project, "convrec.cli", "profile", "movielens-100k" if is_log else "files", *settings)
        for stage in stages:
            scores = ("benchmarks.scale", "--score")
            took = run_timed(project, *(scores if stage == "baselines" else ("convrec.cli", "run", stage)))
            rows = json.loads((project / "results" / "data.json").read_text())["train"]["rows"]
            found[stage] = Measured(rows, *took)
            sys.stdout.write(f"{stage}: {rows:,} rows, {took[0]:.0f} s, {took[1]:.2f} GiB\n")
            sys.stdout.flush()
    return found


def extrapolate(rows: Sequence[float], values: Sequence[float]) -> list[float]:
    """Return the value at each scale of a line with coefficients of at least 0, fitted to relative errors."""
    terms = np.vander(np.array(rows) / TRAINING_ROWS, 2) / np.array(values)[:, None]
    coefficients, _ = nnls(terms, np.ones(len(rows)))
    return list(np.polyval(coefficients, np.array(SCALES)))


def main() -> None:
    """Print each stage's measurements, and what follows for each scale."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="50000,1000000,3000000", help="rows of the samples")
    parser.add_argument("--films", type=int, default=7404)
    parser.add_argument("--interactions", type=int, default=0, help="of the log of a large catalog")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--stages", default=",".join(STAGES), help="that are run; the others need their outputs")
    parser.add_argument("--score", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    stages = options.stages.split(",")
    if options.score:
        return score_baselines()
    if options.interactions:
        measure(options.interactions, options.items, stages, True)
        return None
    samples = [measure(int(number), options.films, stages, False) for number in options.rows.split(",")]
    for stage in stages:
        rows, seconds, memory = zip(*(sample[stage] for sample in samples), strict=True)
        for scale, time_, size in zip(SCALES, extrapolate(rows, seconds), extrapolate(rows, memory), strict=True):
            kind = "extrapolated" if scale * TRAINING_ROWS > max(rows) else "between the samples"
            sys.stdout.write(f"{stage}, {scale} x Reddit-v2, {kind}: {time_ / 3600:.2f} h, {size:.1f} GiB\n")
    return None


if __name__ == "__main__":
    main()
