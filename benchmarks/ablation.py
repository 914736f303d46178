"""SFT on the lists after each demonstration step, from the raw to the full ones.

    python -m benchmarks.ablation --seeds 3

Run it in a project folder, after `dvc repro demonstrations`. For each step and group of prompts, the table has the NDCG
of the demonstrations and of the SFT model, with 95 % bootstrap intervals over persons, and the model's paired
difference to the raw lists. The groups are held-out training prompts, if there are any, and the validation split; no
model is trained on them. All models train on the same prompts: those with an answer of the teacher that are not held
out. Lists are free. The table is also written as `comparison/ablation.json`. Finished trainings are not repeated.
"""

import argparse
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from convrec.pipeline.memory import with_settings
from convrec.project.config.params import Params, load_params
from convrec.project.machine import keep_freed_memory, limit_threads, quiet_libraries
from convrec.project.paths import CHECKPOINTS, Paths
from convrec.project.results import write_json
from convrec.project.table import TextTable

if TYPE_CHECKING:
    import pandas as pd

STEPS = {  # the step whose lists each variant learns; the first is the baseline
    "raw": "teacher",
    "remap": "remap",
    "remap + reflect": "reflect",
    "+ collaborative": "collaborative",
    "full": "adjust",
}
logger = logging.getLogger(__name__)


def ablate(params: Params, paths: Paths, num_seeds: int) -> dict[str, Any]:
    """Train and score every variant with every seed, from `common.seed` on; return the table."""
    # Imported once `main` has limited the threads of torch.
    from convrec.data.conversations import STEP_COLUMNS, read_rows  # noqa: PLC0415
    from convrec.evaluation.comparison import KEYS  # noqa: PLC0415
    from convrec.evaluation.evaluation import Evaluation  # noqa: PLC0415
    from convrec.generation.export import export_model  # noqa: PLC0415
    from convrec.pipeline.stages.sft import key_of, learn  # noqa: PLC0415
    from convrec.registry.tracking import SilentRun, file_md5  # noqa: PLC0415

    demonstrations, base = paths.demonstration("train"), paths.model("base")
    whole = Evaluation.of_split(paths, "validation", **params.evaluation())
    learnt, validation = read_rows(demonstrations), read_rows(paths.demonstration("validation"))
    held_out = {row["prompt_id"] for row in learnt if row["held_out"]}
    rows = [row for row in learnt if row["teacher"] and not row["held_out"]]
    rows_of = {
        "held out": [row for row in read_rows(paths.split("train")) if row["prompt_id"] in held_out],
        "validation": read_rows(paths.split("validation")),
    }
    scored = {group: replace(whole, rows=own) for group, own in rows_of.items() if own}
    metric, first = whole.headline, params.common.seed
    settings = {f"sft.{name}": value for name, value in params.sft.in_one_process().items()}
    runs = [with_settings(params, {**settings, "common.seed": first + number}) for number in range(num_seeds)]

    def model_scores(run: Params, step: str) -> "dict[str, pd.DataFrame]":
        folder = CHECKPOINTS / "ablation" / str(key_of(run, paths)) / step
        logger.warning("SFT on the lists of %s, seed %d: %s", step, run.common.seed, folder)
        checkpoint, tokenizer = learn(run, paths, rows, STEP_COLUMNS[step], folder, SilentRun())
        trust = run.base_model.trust_remote_code
        export_model(checkpoint, base, tokenizer, folder / "model", run.common.repetition_penalty, trust)
        return {group: own.of_model(folder / "model", constrained=False).scores for group, own in scored.items()}

    variants: dict[str, dict[str, Any]] = {}
    baselines: dict[str, pd.DataFrame] = {}
    for name, step in STEPS.items():
        found = [model_scores(run, step) for run in runs]
        texts = {row["prompt_id"]: row[STEP_COLUMNS[step]] for row in (*learnt, *validation)}
        variants[name] = {}
        for group, own in scored.items():
            tables = [scores[group] for scores in found]
            model = tables[0][KEYS].assign(**{metric: sum(table[metric] for table in tables) / len(tables)})
            lists = own.of_lists([texts[row["prompt_id"]] for row in own.prompts]).scores
            variants[name][group] = {
                "lists": own.interval(lists, metric)._asdict(),
                "sft": own.interval(model, metric)._asdict(),
                "sft_by_seed": [float(table[metric].mean()) for table in tables],
            }
            if baselines.setdefault(group, model) is not model:
                variants[name][group]["sft_over_raw"] = own.gain(model, baselines[group], metric)._asdict()
    groups = {group: {"rows": len(own.rows)} for group, own in scored.items()}
    made_from = {"seeds": num_seeds, "demonstrations_md5": file_md5(demonstrations)}
    return {"metric": metric, **made_from, "groups": groups, "variants": variants}


def show(result: Mapping[str, Any]) -> None:
    """Print the table."""
    from convrec.evaluation.headline import bounds, with_interval  # noqa: PLC0415
    from convrec.evaluation.metrics import metric_label  # noqa: PLC0415

    sizes = ", ".join(f"{group} {size['rows']} rows" for group, size in result["groups"].items())
    header, rows = ["demonstrations"], [[name] for name in result["variants"]]
    for group in result["groups"]:
        header += [f"{group}: lists", "SFT (95 %)", "over raw (95 %)"]
        for row in rows:
            entry = result["variants"][row[0]][group]
            gain = entry.get("sft_over_raw")
            row += [f"{entry['lists']['mean']:.4f}", with_interval(entry["sft"])]
            row.append(f"{gain['mean']:+.4f} {bounds(gain, '+.4f')}" if gain else "")
    title = f"{metric_label(result['metric'])}, free lists: {sizes}, {result['seeds']} seeds"
    TextTable(header, rows, title).print(160)


def main() -> None:
    """Run the ablation in this folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, choices=range(1, 101), metavar="N")
    seeds = parser.parse_args().seeds
    limit_threads()
    keep_freed_memory()
    quiet_libraries()
    paths = Paths()
    for stage, path in (("base_model", paths.model("base")), ("demonstrations", paths.demonstration("train"))):
        if not path.exists():
            parser.error(f"{path}: not made yet; run `dvc repro {stage}` first")
    result = ablate(load_params(), paths, seeds)
    write_json(paths.comparison / "ablation.json", result)
    show(result)


if __name__ == "__main__":
    main()
