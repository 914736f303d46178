"""A pretrained language model on ReDial and MovieLens 100k: SFT, guidance and Rank-GRPO, and their lists.

    python -m benchmarks.pretrained --cases redial movielens --redial FOLDER ...        # what needs no GPU
    python -m benchmarks.pretrained --model FOLDER --redial FOLDER --movielens FOLDER   # ten minutes of one GPU
    python -m benchmarks.pretrained --model FOLDER --smoke ...                          # few rows and steps, on a CPU

FOLDER of `--model` is a Hugging Face model, such as SmolLM2-135M-Instruct. Each case is a data set with titles as text
or as item tokens, or with the embedded model of its profile. Its parts are the stages of the pipeline, in one process
and without MLflow, and the lists of each model, guided and unguided, on some validation prompts and on all of
test. `--jobs` cases run at the same time, in the given order. A data set alone is a case, too, which the others need:
run it before, on a CPU.

Everything is written below `--out`: a project for each case, its log, and `CASE/result.json` after each part. What is
there is not repeated: a part that was interrupted runs again, and a training goes on from its last checkpoint. With
`--tables`, nothing runs: the tables and `pretrained.json` are made of what is there.
"""

import argparse
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.pretrained_tables import KINDS, Found, report
from convrec.evaluation.systems import BASELINES
from convrec.project.config.params import Params, parse_params
from convrec.project.config.profiles import compose
from convrec.project.machine import limit_threads
from convrec.project.paths import Paths
from convrec.project.results import read_json, write_json

ROOT = Path(__file__).resolve().parent.parent
PROFILES = {"redial": "redial", "movielens": "movielens-100k"}
CASES = [f"{data}-{kind}" for kind in KINDS for data in PROFILES]

# A model of 135 million weights, in bfloat16 with float32 masters; four cases share a GPU of 80 GB. One H200 needs 8
# minutes and a half for all four (docs/log/2026-11-28.md), so an H100 that is slower by a sixth ends within ten.
PRETRAINED = {
    "common.max_prompt_length": 512,
    "common.repetition_penalty": 1.0,
    "base_model.dtype": "bfloat16",
    "sft.num_train_epochs": 2,
    "sft.max_length": 960,
    "sft.learning_rate": 3e-4,
    "sft.per_device_train_batch_size": 32,
    "sft.save_steps": 1000,
    "guidance.fit_prompts": 200,  # all of MovieLens' 1,353 would take minutes
    "rank_grpo.num_generations": 8,
    "rank_grpo.learning_rate": 3e-5,
    "sft.validation_prompts": 200,
    "evaluate.batch_size": 384,
}
OF_KIND: dict[str, dict[str, Any]] = {
    "items": {
        "common.item_tokens": True,
        "sft.num_train_epochs": 3,  # of fewer tokens, and new rows to learn
        "rank_grpo.max_steps": 60,
        "rank_grpo.per_device_train_batch_size": 256,
        "common.max_completion_length": 32,
        "rank_grpo.save_steps": 20,
    },
    "text": {
        "common.item_tokens": False,
        "sft.lists": "adjust",
        "sft.demonstration_weight": 1.0,  # the lists' form has to be learned
        "sft.weight_decay": 0.0,
        "rank_grpo.max_steps": 40,
        "rank_grpo.per_device_train_batch_size": 64,
        "rank_grpo.gradient_accumulation_steps": 2,
        "common.max_completion_length": 448,
        "rank_grpo.save_steps": 20,
    },
    "embedded": {},
}
OF_DATA: dict[str, dict[str, Any]] = {
    "redial": {  # liked suggestions in lists of 20, as in docs/experiments.md, not the profile's published protocol
        "common.list_length": 20,
        "common.cutoffs": [5, 10, 20],
        "data.redial.ground_truth": "liked",
        "data.redial.own_splits": False,
        "demonstrations.train_share": 1.0,
    },
}
SMOKE = {
    "guidance.fit_prompts": 8,
    "sft.num_train_epochs": 1,
    "sft.validation_prompts": 4,
    "sft.checkpoint_step": 2,
    "sft.per_device_train_batch_size": 2,
    "rank_grpo.max_steps": 2,
    "rank_grpo.per_device_train_batch_size": 4,
    "rank_grpo.num_generations": 2,
    "rank_grpo.gradient_accumulation_steps": 1,
    "rank_grpo.save_steps": 2,
    "evaluate.batch_size": 8,
    "evaluate.max_prompts": 8,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cases and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs", "pretrained"))
    parser.add_argument("--model", type=Path)
    for data in PROFILES:
        parser.add_argument(f"--{data}", type=Path, default=Path("data", "raw", PROFILES[data]))
    parser.add_argument("--cases", nargs="+", choices=[*PROFILES, *CASES], default=CASES[:4])
    parser.add_argument("--jobs", type=int, default=4, help="cases at the same time")
    parser.add_argument("--skip", nargs="*", default=[], help="parts")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="of all cases")
    parser.add_argument("--smoke", action="store_true", help="a few rows and steps")
    parser.add_argument("--tables", action="store_true", help="only the tables of what is there")
    parser.add_argument("--only", choices=[*PROFILES, *CASES], help=argparse.SUPPRESS)  # the process of one case
    options = parser.parse_args(arguments)
    for name in ("out", "model", *PROFILES):
        if (path := getattr(options, name)) is not None:
            setattr(options, name, path.resolve())
    if options.only:
        return run_case(options.only, options)
    given = sys.argv[1:] if arguments is None else list(arguments)
    options.out.mkdir(parents=True, exist_ok=True)

    def start(case: str) -> int:
        with (options.out / f"{case}.log").open("a") as log:
            command = [sys.executable, "-m", "benchmarks.pretrained", *given, "--only", case]
            return subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode

    failed = []
    if not options.tables:
        for case in options.cases:
            case_params(case, options)  # an error ends this process, not one in the background
        data = list(dict.fromkeys(case.split("-")[0] for case in options.cases))
        for cases in (data, [case for case in options.cases if case not in data]):
            with ThreadPoolExecutor(options.jobs) as pool:
                failed += [case for case, code in zip(cases, pool.map(start, cases), strict=True) if code]
            if failed:
                break
    sys.stdout.write(report(options.out))
    if failed:
        sys.exit(f"{', '.join(failed)}: see {', '.join(str(options.out / case) + '.log' for case in failed)}")
    return None


def case_params(case: str, options: argparse.Namespace) -> Params:
    """Return the parameters of a case, or of a data set alone: its profile, with the settings of its kind."""
    data, _, kind = case.partition("-")
    settings: Found = {"data.path": str(getattr(options, data)), **OF_DATA.get(data, {})}
    if kind in ("items", "text"):
        settings |= {"base_model.name": str(options.model), **PRETRAINED}
    settings |= OF_KIND.get(kind, {}) | (SMOKE if options.smoke and kind else {})
    given = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]
    return parse_params(compose(PROFILES[data], given + options.set, ROOT / "profiles"), case)


def run_case(case: str, options: argparse.Namespace) -> None:
    """Run the parts of a case that have no result yet, in its folder; write the results after each."""
    limit_threads()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("convrec").setLevel(logging.INFO)
    import torch  # noqa: PLC0415  (after the threads are limited)

    from convrec.project.device import release_memory  # noqa: PLC0415

    params, (data, _, kind) = case_params(case, options), case.partition("-")
    folder = options.out / case
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    for name in ("configs", "prompts", "dvc.yaml"):
        _link(Path(name), ROOT / name)
    if kind:
        _link(Path("data"), Path("..", data, "data"))
        Path("models").mkdir(exist_ok=True)
        _link(Path("models", "evidence"), Path("..", "..", data, "models", "evidence"))
    file, on_gpu = Path("result.json"), torch.cuda.is_available()
    found = read_json(file) if file.is_file() else {"case": case, "seconds": {}, "peak_gib": {}}
    found["device"] = torch.cuda.get_device_name() if on_gpu else "cpu"
    for name, part in _parts(params, kind).items():
        if name in found["seconds"] or name in options.skip:
            continue
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        began = time.monotonic()
        found |= part()
        found["seconds"][name] = time.monotonic() - began
        if on_gpu:
            found["peak_gib"][name] = torch.cuda.max_memory_allocated() / 2**30
        write_json(file, found)
        release_memory()


def _link(path: Path, target: Path) -> None:
    if not path.exists():
        path.symlink_to(target)


def _parts(params: Params, kind: str) -> dict[str, Callable[[], Found]]:
    """Return the parts of a case, or of a data set alone, in the order in which they run."""

    def stage(name: str) -> Callable[[], Found]:
        return lambda: run_stage(name, params)

    if not kind:
        names = ("data", "evidence", "demonstrations")
        return {**{name: stage(name) for name in names}, "lists": lambda: baselines(params)}
    return {
        **{name: stage(name) for name in ("base_model", "sft", "guidance")},
        "sft_lists": lambda: model_lists(params, "sft"),
        "rank_grpo": lambda: run_stage("rank_grpo", params) | training_figures(params, "rank_grpo"),
        "rank_grpo_lists": lambda: model_lists(params, "rank_grpo"),
        "base_lists": lambda: model_lists(params, "base"),
    }


def run_stage(name: str, params: Params) -> Found:
    """Run a stage of the pipeline in the current folder, and return its metrics."""
    from importlib import import_module  # noqa: PLC0415

    from convrec.registry.tracking import SilentRun  # noqa: PLC0415

    import_module(f"convrec.pipeline.stages.{name}").run(params, Paths(), SilentRun())
    return {f"{name}_metrics": read_json(Paths().metrics(name))}


def training_figures(params: Params, name: str) -> Found:
    """Return the median seconds of a Rank-GRPO step and its parts, after the first steps, and the tokens of a list."""
    from convrec.pipeline.stages.rank_grpo import key_of  # noqa: PLC0415
    from convrec.training.callbacks import read_history  # noqa: PLC0415
    from convrec.training.checkpoints import training_folder  # noqa: PLC0415

    history = read_history(training_folder("rank_grpo", key_of(params, Paths())) / "history.jsonl")
    steps = pd.DataFrame([row for row in history if "reward" in row])
    validation = {int(r["step"]): r["validation/ndcg_at_20"] for r in history if "validation/ndcg_at_20" in r}
    times = steps.filter(regex="^seconds/(?!elapsed)").iloc[min(3, len(steps) - 1) :].median()
    figures: Found = {key.removeprefix("seconds/"): float(value) for key, value in times.items()}
    figures |= {"step": float(times.sum()), "tokens_per_list": float(steps["completions/mean_length"].mean())}
    figures |= {"steps": len(steps), "lists_per_step": params.rank_grpo.per_device_train_batch_size}
    figures["lists_per_step"] *= params.rank_grpo.gradient_accumulation_steps
    hits = steps["lists/hits"]
    figures |= {"hits_first_10": float(hits[:10].mean()), "hits_last_10": float(hits[-10:].mean())}
    return {f"{name}_training": figures | {"validation_by_step": {str(k): v for k, v in validation.items()}}}


def model_lists(params: Params, model: str) -> Found:
    """Score a model's constrained lists, unguided and guided; keep the scores, and return their means."""
    from convrec.classical.guidance import Guidance  # noqa: PLC0415
    from convrec.evaluation.evaluation import Evaluation  # noqa: PLC0415

    found: Found = {}
    for split in ("validation", "test"):
        asked = params.evaluation()
        if split == "validation":
            asked["max_prompts"] = min(params.sft.validation_prompts, asked["max_prompts"] or np.inf)
        evaluation = Evaluation.of_split(Paths(), split, **asked)
        training = Paths().evidence if split == "validation" else None
        guide = Guidance.load(Paths().guidance, evaluation.catalog, training=training)
        kinds = {"unguided": None} | ({} if guide is None else {"guided": guide(evaluation.prompts)})
        with evaluation.of_guided(Paths().model(model)) as scored:
            for kind, weights in kinds.items():
                began, name = time.monotonic(), f"{model}_{kind}"
                (lists,) = scored(weights)
                found[f"{name}_{split}_lists_per_second"] = len(lists.texts) / (time.monotonic() - began)
                found |= _keep(evaluation, lists.texts, lists.scores, name, split)
    return found


def baselines(params: Params) -> Found:
    """Score the baselines' lists on test; keep the scores, and return their means and their validation NDCG."""
    from convrec.evaluation.baselines import Answers, kept_baselines  # noqa: PLC0415
    from convrec.evaluation.evaluation import Evaluation  # noqa: PLC0415

    evaluation = Evaluation.of_split(Paths(), "test", **params.evaluation())
    kept = kept_baselines(BASELINES, Paths(), evaluation.prompts, evaluation.catalog, **params.baseline_options())
    found: Found = {}
    for name, own in kept.items():
        if isinstance(own, Answers):
            lists = evaluation.of_lists(own.lists)
            found |= _keep(evaluation, lists.texts, lists.scores, name, "test")
            found[f"{name}_validation"] = {"ndcg_at_20": own.validation, "settings": own.settings}
    return found


def _keep(evaluation: Any, texts: Mapping[str, str], scores: pd.DataFrame, system: str, split: str) -> Found:
    """Write the scores of every row, and for every item of the ground truth its likes and whether it is in the list."""
    from convrec.data.conversations import person_of, read_rows, truths  # noqa: PLC0415
    from convrec.evaluation.beyond_accuracy import mentions, truth_popularity  # noqa: PLC0415

    rows, catalog = evaluation.rows, evaluation.catalog
    counts = mentions(read_rows(Paths().split("train")), catalog)
    items = evaluation.items(texts)
    hits = [
        {"prompt_id": row["prompt_id"], "person": person_of(row), "likes": counts[index], "hit": float(index in listed)}
        for row in rows
        for listed in [set(items[row["prompt_id"]])]
        for index in (catalog.find(*truth) for truth in truths(row))
        if index is not None
    ]
    folder = Path("scores", split)
    folder.mkdir(parents=True, exist_ok=True)
    scores.assign(likes=truth_popularity(rows, counts, catalog)).to_parquet(folder / f"{system}.parquet")
    pd.DataFrame(hits).to_parquet(folder / f"{system}.hits.parquet")
    means = {name: float(scores[name].mean()) for name in ("ndcg_at_20", "recall_at_20", "in_catalog")}
    return {f"{system}_{split}": {**means, "rows": len(rows)}}


if __name__ == "__main__":
    main()
