"""`convrec compare`: compares algorithms over seeds, with the same SFT model, data and number of steps."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from convrec.evaluation.comparison import KEYS
from convrec.evaluation.evaluation import Evaluation
from convrec.evaluation.metrics import metric_label
from convrec.generation.pretrained import load_tokenizer
from convrec.pipeline.stages.rank_grpo import align
from convrec.pipeline.variants import Experiment, gain_text, mean_of_seeds, params_of_seeds, require_made
from convrec.project.atomic import write_text
from convrec.project.config.params import Params
from convrec.project.config.rank_grpo import BY_RANK
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.project.results import write_json
from convrec.project.table import TextTable
from convrec.registry.tracking import Run, data_tags, group_run
from convrec.training.callbacks import read_history
from convrec.training.checkpoints import last_checkpoint
from convrec.training.start import Start

START = "sft"  # the model that every run starts from, a row of the table
_GROUP = "comparison"
_NAME = re.compile(r"([a-z_]+)(?::([a-z_]+)(?::([0-9]+(?:\.[0-9]+)?))?)?")


def variant(name: str) -> dict[str, Any]:
    """Return the parameters of `rank_grpo` for the name of a variant.

    A name is `ALGORITHM` (such as `grpo`, `dpo`), `rank_grpo:RETURNS` or `rank_grpo:exp:GAMMA`, also with
    `rank_grpo_public`. Clip range, aggregation and the reward of an exact list have the published values.

    Raises `InputError` for a name of another form.
    """
    found = _NAME.fullmatch(name)
    if found is None or (found[2] and found[1] not in BY_RANK):
        raise InputError(f"--algorithms: {name!r}: give a name; only rank_grpo has returns, as in rank_grpo:exp:2")
    changes: dict[str, Any] = {"algorithm": found[1], "start": START, "output_checkpoint": "last"}
    if found[2]:
        changes["returns"] = found[2]
    if found[3]:
        changes["return_gamma"] = float(found[3])
    return changes | dict.fromkeys(("epsilon", "epsilon_high", "aggregation", "delta", "exact_eos_reward"))


def run_params(params: Params, name: str, num_seeds: int, max_steps: int | None) -> list[Params]:
    """Return the parameters of a variant's runs."""
    steps = {} if max_steps is None else {"max_steps": max_steps}
    return params_of_seeds(params, "rank_grpo", variant(name) | steps, num_seeds, f"--algorithms {name}")


def _train(params: Params, folder: Path, record: Run, paths: Paths) -> tuple[Path, Any]:
    checkpoint = align(params, paths, Start(str(paths.model(START))), folder, record)
    return checkpoint, load_tokenizer(paths.model(START), trust_remote_code=params.base_model.trust_remote_code)


def _curves(names: dict[str, list[Path]], metric: str) -> pd.DataFrame:
    rows = [
        {"algorithm": name, "seed": seed, "step": row["step"], "seconds": row["seconds/elapsed"], metric: row[key]}
        for key in [f"validation/{metric}"]
        for name, folders in names.items()
        for seed, folder in enumerate(folders)
        for row in read_history(folder / "history.jsonl")
        if key in row
    ]
    return pd.DataFrame(rows)


def compare_algorithms(
    params: Params, paths: Paths, names: Sequence[str], num_seeds: int, max_steps: int | None
) -> Path:
    """Run every variant with every seed; write `compare.json` and `curves.csv`; return the first.

    The table has each variant's mean validation NDCG and its standard deviation over seeds, and its paired differences
    to GRPO (if it is a variant) and to the SFT model. Their 95 % bootstrap intervals are over persons, with each row's
    mean over the seeds. Lists are constrained if those of training are. An interrupted comparison resumes when it is
    started again.

    Raises `InputError` before any training if the SFT model or the engine is missing, or a name is invalid.
    """
    variants = {name: run_params(params, name, num_seeds, max_steps) for name in dict.fromkeys(names)}
    require_made(sft=paths.model(START))
    evaluation = Evaluation.of_split(paths, "validation", **{**params.evaluation(), "max_prompts": None})
    metric, constrained = evaluation.headline, params.rank_grpo.constrained
    inputs = [paths.model(START), paths.split("train"), paths.split("validation"), paths.catalog]
    scored = {_GROUP: list(evaluation.rows)}
    experiment = Experiment(__name__, "rank_grpo", inputs, scored, evaluation, constrained, paths)
    train = partial(_train, paths=paths)
    tags = {**params.tags(), **data_tags(paths), "algorithm": ",".join(variants), "stage": "compare"}
    with group_run("compare", tags, {"compare": {"seeds": num_seeds, "steps": max_steps}}) as record:
        folders = {name: experiment.run_seeds(name, runs, train, record) for name, runs in variants.items()}
        sft = evaluation.of_model(paths.model(START), constrained).scores
        means: dict[str, tuple[pd.DataFrame, list[float]]] = {START: (sft[[*KEYS, metric]], [])}
        means |= {name: mean_of_seeds(own, _GROUP, metric) for name, own in folders.items()}
        last = last_checkpoint(next(iter(folders.values()))[0])  # of as many steps in all runs
        steps = int(last.name.rsplit("-", 1)[1]) if last else 0
        result: dict[str, Any] = {"metric": metric, "rows": len(sft), "prompts": len(evaluation.prompts)}
        result |= {"constrained": constrained, "seeds": num_seeds, "steps": steps, "algorithms": {}}
        for name, (table, by_seed) in means.items():
            entry: dict[str, Any] = {"mean": float(table[metric].mean()), "by_seed": by_seed}
            entry["spread"] = float(pd.Series(by_seed).std()) if len(by_seed) > 1 else 0.0
            for baseline in (other for other in ("grpo", START) if other in means and other != name):
                other = means[baseline][0]
                level = float(other[metric].mean())
                entry[f"over_{baseline}"] = evaluation.gain(table, other, metric)._asdict()
                entry[f"ratio_to_{baseline}"] = entry["mean"] / level if level else None
            result["algorithms"][name] = entry
        target = paths.comparison / "compare.json"
        write_text(paths.comparison / "curves.csv", _curves(folders, metric).to_csv(index=False, float_format="%.6g"))
        write_json(target, result)
        record.log_artifact(target)
    print_comparison(result)
    return target


def print_comparison(result: dict[str, Any]) -> None:
    """Print one row for each variant: mean and spread over seeds, and the gains over GRPO and SFT."""
    label = metric_label(result["metric"])
    lists = "constrained" if result["constrained"] else "free"
    title = (
        f"Validation {label}, {lists} lists: {result['rows']} rows, {result['prompts']} prompts, "
        f"{result['seeds']} seeds, {result['steps']} steps"
    )
    rows = []
    for name, entry in result["algorithms"].items():
        cells = [name, f"{entry['mean']:.4f}", f"{entry['spread']:.4f}" if entry["by_seed"] else ""]
        for baseline in ("grpo", START):
            gain = entry.get(f"over_{baseline}")
            ratio = entry.get(f"ratio_to_{baseline}")
            cells += [f"{ratio:.3f}" if ratio else "", gain_text(gain)]
        rows.append(cells)
    header = ("algorithm", label, "spread", "x GRPO", "over GRPO (95 %)", "x SFT", "over SFT (95 %)")
    TextTable(header, rows, title).print(width=120)
