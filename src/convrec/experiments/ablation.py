"""`convrec ablate-demonstrations`: SFT on the lists after each step, to measure the effect of each step."""

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from convrec.config.params import Params, parse_params
from convrec.data.catalog import Catalog
from convrec.data.conversations import read_rows
from convrec.demonstrations.prompts import STEP_COLUMNS
from convrec.errors import InputError
from convrec.evaluation.comparison import mean_interval, paired_interval
from convrec.evaluation.scoring import score_lists
from convrec.experiments.seeds import Experiment, Rows, mean_of_seeds
from convrec.files.results import write_json
from convrec.generation.lists import EngineOptions
from convrec.paths import Paths
from convrec.stages.sft import learn
from convrec.tracking import Run, data_tags, file_md5, group_run

VARIANTS = {
    "raw": "teacher",
    "remap": "remap",
    "remap + reflect": "reflect",
    "+ collaborative": "collaborative",
    "full": "adjust",
}
BASELINE = "raw"


def _measured(paths: Paths, frame: Rows) -> dict[str, Rows]:
    """Return the rows for scoring: those of held-out training prompts, if there are any, and the validation split.

    The held-out prompts are from the months of the demonstrations. Neither Adjust nor these models are fitted to them.
    """
    held_out = {row["prompt_id"] for row in frame if row["held_out"]}
    measured = {
        "held out": [row for row in read_rows(paths.split("train")) if row["prompt_id"] in held_out],
        "validation": read_rows(paths.split("validation")),
    }
    return {group: rows for group, rows in measured.items() if rows}


def _train(params: Params, folder: Path, record: Run, paths: Paths, frame: Rows, column: str) -> tuple[Path, Any]:
    rows = [row for row in frame if row["teacher"] and not row["held_out"]]  # the same prompts for all variants
    return learn(params, paths, rows, column, folder, record)


def _list_scores(name: str, params: Params, paths: Paths, measured: dict[str, Rows]) -> dict[str, pd.DataFrame]:
    """Return the scores of the demonstrations themselves, by group of prompts."""
    catalog, common = Catalog.read(paths.catalog), params.common
    texts = {
        row["prompt_id"]: row[STEP_COLUMNS[VARIANTS[name]]]
        for split in ("train", "validation")
        for row in read_rows(paths.demonstration(split))
    }
    return {
        prompts: score_lists(texts, rows, catalog, common.list_length, common.cutoffs)
        for prompts, rows in measured.items()
    }


def ablate(params: Params, paths: Paths, num_seeds: int) -> Path:
    """Train SFT on the lists after each step, from the raw to the full ones; print the table and write it as JSON.

    For each variant and group of prompts, the table has the NDCG of the demonstrations and of the SFT model, with 95 %
    bootstrap intervals over persons, and the model's paired difference to `raw`. All models train on the same prompts:
    those with an answer of the teacher that are not held out. An interrupted ablation resumes when it is started again.

    Raises `InputError` before any training if the base model, the demonstrations or the engine is missing.
    """
    for path, stage in ((paths.model("base"), "base_model"), (paths.demonstration("train"), "demonstrations")):
        if not path.exists():
            raise InputError(f"{path}: not made yet; run `dvc repro {stage}` first")
    EngineOptions.on_this_machine(**params.engine_options())  # a missing engine stops this before the trainings
    raw = params.model_dump()
    raw["sft"] |= params.sft.in_one_process()
    runs = []
    for seed in range(params.common.seed, params.common.seed + num_seeds):
        raw["common"]["seed"] = seed
        runs.append(parse_params(raw, "--seeds"))
    frame = read_rows(paths.demonstration("train"))
    measured = _measured(paths, frame)
    metric, samples = f"ndcg_at_{max(params.common.cutoffs)}", params.evaluate.bootstrap_samples
    tags = {**params.tags(), **data_tags(paths), "stage": "ablate-demonstrations"}
    with group_run("ablate-demonstrations", tags, {"ablation": {"seeds": num_seeds}}) as record:
        splits = [paths.split("train"), paths.split("validation"), paths.catalog]
        inputs = [paths.model("base"), paths.demonstration("train"), *splits]
        experiment = Experiment("ablation", __name__, "sft", "base", inputs, measured, False, paths, record)
        folders = {}
        for name, step in VARIANTS.items():
            train = partial(_train, paths=paths, frame=frame, column=STEP_COLUMNS[step])
            given = {"demonstrations": name}
            folders[name] = experiment.run_seeds(f"SFT on {name}", runs, given, train, column=STEP_COLUMNS[step])
        groups = {group: {"rows": len(rows)} for group, rows in measured.items()}
        result: dict[str, Any] = {"metric": metric, "seeds": num_seeds, "groups": groups, "variants": {}}
        result["demonstrations_md5"] = file_md5(paths.demonstration("train"))
        for name in VARIANTS:
            lists = _list_scores(name, params, paths, measured)
            result["variants"][name] = {}
            for group in measured:
                models, by_seed = mean_of_seeds(folders[name], group, metric)
                entry = {
                    "lists": mean_interval(lists[group], metric, samples, params.common.seed)._asdict(),
                    "sft": mean_interval(models, metric, samples, params.common.seed)._asdict(),
                    "sft_by_seed": by_seed,
                }
                if name != BASELINE:
                    baseline, _ = mean_of_seeds(folders[BASELINE], group, metric)
                    gain = paired_interval(models, baseline, metric, samples, params.common.seed)
                    entry[f"sft_over_{BASELINE}"] = gain._asdict()
                result["variants"][name][group] = entry
        write_json(paths.ablation, result)
        record.log_artifact(paths.ablation)
    print_ablation(result)
    return paths.ablation


def print_ablation(result: dict[str, Any]) -> None:
    """Print one row for each variant: the NDCG of its lists and of its model by group of prompts."""
    label = result["metric"].replace("ndcg_at_", "NDCG@")
    rows = ", ".join(f"{group} {sizes['rows']} rows" for group, sizes in result["groups"].items())
    table = Table(title=f"{label}: {rows}, {result['seeds']} seeds", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("demonstrations", no_wrap=True)
    for group in result["groups"]:
        for heading in (f"{group}: lists", "SFT (95 %)", "over raw (95 %)"):
            table.add_column(heading, justify="right", no_wrap=True)
    for name, groups in result["variants"].items():
        cells = [name]
        for entry in groups.values():
            sft, gain = entry["sft"], entry.get(f"sft_over_{BASELINE}")
            cells.append(f"{entry['lists']['mean']:.4f}")
            cells.append(f"{sft['mean']:.4f} [{sft['low']:.4f}, {sft['high']:.4f}]")
            cells.append(f"{gain['mean']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}]" if gain else "")
        table.add_row(*cells)
    Console(highlight=False, width=160).print(table)
