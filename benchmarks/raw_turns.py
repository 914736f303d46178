"""Time and peak memory of the raw Reddit-Movie reader for a million turns, compared with an implementation in pandas.

Both run in separate processes on the same files, and their rows are compared.

    python -m benchmarks.raw_turns [--turns 1000000] [--films 20000]
"""

import argparse
import ast
import hashlib
import json
import re
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pandas as pd

from convrec.data.catalog import build_catalog
from convrec.data.quarantine import Quarantine
from convrec.data.schemas import write_conversations
from convrec.data.sources.reddit_movie import read_reddit_movie
from convrec.data.titles import title_and_year
from convrec.pipeline.stages.data import prepare
from convrec.project.config.params import load_params
from tests.data.sources.reddit_movie_sample import write_sample

MIN_UPVOTES = 1
COLUMNS = ["conversation_id", "prompt_id", "date", "messages", "groundtruth", "seen_titles"]


def by_polars(folder: Path) -> pd.DataFrame:
    """Return the rows of the project's reader."""
    return read_reddit_movie(folder, Quarantine(), min_upvotes=MIN_UPVOTES).rows


def whole_stage(folder: Path) -> pd.DataFrame:
    """Return the training split after the whole stage: reading, checks, splits, leaks, writing."""
    params = load_params()
    data = params.data.model_copy(update={"source": "reddit_movie", "path": str(folder), "min_upvotes": MIN_UPVOTES})
    _, splits, _ = prepare(params.model_copy(update={"data": data}), Quarantine())
    for name, rows in splits.items():
        write_conversations(rows, folder / f"{name}.parquet")
    return splits["train"]


def by_pandas(folder: Path) -> pd.DataFrame:
    """Return the same rows with typical pandas code: column operations where they are easy, else functions."""
    names = json.loads((folder / "id2name.json").read_text(encoding="utf-8"))
    ids = sorted(names, key=lambda movie: (len(movie), movie))
    catalog, places = build_catalog([{"title": names[movie]} for movie in ids], (), Quarantine())
    place_of = dict(zip(ids, places, strict=True))
    films = {movie: None if place is None else catalog.items[place] for movie, place in place_of.items()}
    key_of = {movie: movie if place is None else place for movie, place in place_of.items()}
    text_of = {movie: str(films[movie]) if films[movie] else names[movie] for movie in ids}
    title_of = {movie: films[movie].title if films[movie] else title_and_year(names[movie])[0] for movie in ids}
    mention = re.compile("tt[0-9]+")

    used = ["conv_id", "turn_id", "is_seeker", "utc_time", "upvotes", "processed", "context_turn_ids"]
    turns = pd.concat([pd.read_csv(path, usecols=used) for path in sorted(folder.glob("*.csv"))])
    turns = turns.drop_duplicates("turn_id")
    turns["text"] = turns["processed"].map(lambda cell: ast.literal_eval(cell)[1].strip())
    turns["ids"] = turns["text"].str.findall("tt[0-9]+")
    text = dict(zip(turns["turn_id"], turns["text"], strict=True))
    mentions = dict(zip(turns["turn_id"], turns["ids"], strict=True))
    seekers = dict(zip(turns["turn_id"], turns["is_seeker"], strict=True))

    def messages(path: list[str]) -> list[dict[str, str]]:
        result: list[dict[str, str]] = []
        for turn_id in path:
            role = "user" if seekers[turn_id] else "assistant"
            words = mention.sub(lambda match: text_of[match.group()], text[turn_id])
            if result and result[-1]["role"] == role:
                result[-1]["content"] += f"\n{words}"
            else:
                result.append({"role": role, "content": words})
        return result

    def seen(path: list[str]) -> list[str]:
        return list(dict.fromkeys(title_of[movie] for turn_id in path for movie in mentions[turn_id]))

    def truths(turn_id: str, path: list[str]) -> list[dict[str, object]]:
        named = {key_of[movie] for parent in path for movie in mentions[parent]}
        fresh = {key_of[movie]: films[movie] for movie in mentions[turn_id] if key_of[movie] not in named}
        return [{"title": item.title, "year": item.year} for item in fresh.values() if item]

    rows = turns[~turns["is_seeker"] & (turns["upvotes"] >= MIN_UPVOTES) & (turns["ids"].map(len) > 0)].copy()
    rows["path"] = rows["context_turn_ids"].map(ast.literal_eval)
    rows["groundtruth"] = [truths(*pair) for pair in zip(rows["turn_id"], rows["path"], strict=True)]
    rows = rows[rows["groundtruth"].map(len) > 0].sort_values(["utc_time", "turn_id"])
    rows["messages"] = rows["path"].map(messages)
    rows["seen_titles"] = rows["path"].map(seen)
    rows["prompt_id"] = rows["messages"].map(lambda m: hashlib.sha256(json.dumps(m).encode()).hexdigest()[:16])
    rows["date"] = pd.to_datetime(rows["utc_time"], unit="s").dt.strftime("%Y-%m-%d")
    return rows.rename(columns={"conv_id": "conversation_id"})[COLUMNS]


def _peak() -> int:
    """Return the peak resident memory of this process in bytes since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def measure(work: str, folder: Path) -> tuple[float, int, int, str]:
    """Return seconds, peak bytes, number of rows and a hash of the rows; run it in a new process."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    start = time.perf_counter()
    rows = {"by_polars": by_polars, "by_pandas": by_pandas, "whole_stage": whole_stage}[work](folder)
    seconds, peak = time.perf_counter() - start, _peak()
    digest = hashlib.sha256()
    for begin in range(0, len(rows), 10_000):
        for row in rows.iloc[begin : begin + 10_000].to_dict("records"):
            digest.update(json.dumps(row, sort_keys=True, default=int).encode())
    return seconds, peak, len(rows), digest.hexdigest()


def main() -> None:
    """Print one line for each reader, and their ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=1_000_000)
    parser.add_argument("--films", type=int, default=20_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sample(folder, options.turns, options.films)
        size = sum(path.stat().st_size for path in folder.glob("*.csv"))
        sys.stdout.write(f"{options.turns} raw turns, {size / 2**30:.2f} GiB of CSV\n")
        results = {}
        for work in ("by_polars", "by_pandas", "whole_stage"):
            # A new interpreter for each, so that peak memory does not include that of the other or of the generator.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                results[work] = pool.submit(measure, work, folder).result()
            seconds, peak, number, _ = results[work]
            kind = "training rows" if work == "whole_stage" else "rows"
            sys.stdout.write(f"{work}: {seconds:.1f} s, peak {peak / 2**30:.2f} GiB, {number} {kind}\n")
            sys.stdout.flush()
    ours, theirs = results["by_polars"], results["by_pandas"]
    if ours[2:] != theirs[2:]:
        raise SystemExit("the rows of the two differ")
    sys.stdout.write(
        f"same rows; Polars takes {ours[0] / theirs[0]:.3f} of pandas' time ({theirs[0] / ours[0]:.1f} times as fast) "
        f"and {ours[1] / theirs[1]:.2f} of its peak memory\n"
    )


if __name__ == "__main__":
    main()
