"""`convrec compare` and `convrec ablate-demonstrations`: variants of a training over seeds, from one model and data.

Each training is made and scored once, in nested MLflow runs. An interrupted comparison resumes when
it is started again.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from convrec.classical.guidance import load_guide
from convrec.data.conversations import STEP_COLUMNS, read_rows
from convrec.evaluation.comparison import KEYS
from convrec.evaluation.evaluation import Evaluation
from convrec.evaluation.headline import bounds, with_interval
from convrec.evaluation.metrics import metric_label
from convrec.evaluation.scoring import mean_scores
from convrec.generation.export import export_model
from convrec.generation.trie import Guide
from convrec.pipeline.memory import with_settings
from convrec.pipeline.stages.rank_grpo import align
from convrec.pipeline.stages.sft import learn
from convrec.project.atomic import replaced
from convrec.project.code import TRAINERS, code_files, make_key
from convrec.project.config.params import Params
from convrec.project.config.rank_grpo import BY_RANK
from convrec.project.errors import InputError
from convrec.project.graph import stage_params
from convrec.project.paths import CHECKPOINTS, Paths
from convrec.project.results import write_json
from convrec.project.table import TextTable
from convrec.registry.tracking import Run, file_md5, group_run, stage_run
from convrec.training.checkpoints import last_checkpoint

logger = logging.getLogger(__name__)

START = "sft"  # the model that every run of `compare` starts from, a row of its table
STEPS = {  # of `ablate-demonstrations`: the step whose lists each variant learns; the first is the baseline
    "raw": "teacher",
    "remap": "remap",
    "remap + reflect": "reflect",
    "+ collaborative": "collaborative",
    "full": "adjust",
}
BASELINE = "raw"
Train = Callable[[Params, Path, Run], tuple[Path, Any]]  # trains in a folder; returns the checkpoint and the tokenizer
_NAME = re.compile(r"([a-z_]+)(?::([a-z_]+)(?::([0-9]+(?:\.[0-9]+)?))?)?")
_SCORES = "scores.parquet"  # in the folder of a finished training
_GROUP = "group"


@dataclass(frozen=True)
class Experiment:
    """The common settings of trainings.

    - `name`: that of the folder of all trainings.
    - `stage`: the stage that is trained.
    - `inputs`: the files that the trainings read; the model that they start from is the first.
    - `scored`: the evaluations of the models, by group of rows; if `constrained`, their lists have catalog items only,
      guided by the `guide`.
    """

    name: str
    stage: str
    inputs: Sequence[Path]
    scored: Mapping[str, Evaluation]
    constrained: bool
    guide: Guide | None

    def run_seeds(self, name: str, runs: Sequence[Params], train: Train, parent: Run) -> list[Path]:
        """Train and score a variant with the parameters of every seed; return the folders, one per seed.

        Finished trainings are not repeated.
        """
        tags = {key: value for key, value in runs[0].tags().items() if key != "seed"}
        tags |= {"variant": name, "stage": "variant"}
        values = runs[0].model_dump(include={self.stage})
        with group_run(name, tags, values, parent.run_id) as record:
            folders = [self._run(name, run, train, record) for run in runs]
            record.log_metrics(pd.DataFrame([_means(pd.read_parquet(f / _SCORES)) for f in folders]).mean().to_dict())
        return folders

    def _run(self, name: str, params: Params, train: Train, parent: Run) -> Path:
        common, trust = params.common, params.base_model.trust_remote_code
        trained = stage_params(params, self.stage).keyed(self.stage)
        parameters = {"variant": name, **trained, "lists": params.list_settings(), "cutoffs": common.cutoffs}
        key = make_key(parameters, self.inputs, code_files([__name__]), TRAINERS)
        folder = CHECKPOINTS / self.name / str(key)
        if (folder / _SCORES).is_file():
            logger.info("%s, seed %d: already finished (%s)", name, common.seed, folder)
            return folder
        logger.info("%s, seed %d: training in %s", name, common.seed, folder)
        values = params.model_dump(include={"common", self.stage})
        tags = {**params.tags(), "variant": name, "stage": self.stage}
        with stage_run(f"{name} seed {common.seed}", values, tags, folder / "run.json", parent.run_id) as record:
            checkpoint, tokenizer = train(params, folder, record)
            model = folder / "model"
            export_model(checkpoint, self.inputs[0], tokenizer, model, common.repetition_penalty, trust)
            tables = [
                own.of_model(model, self.constrained, guide=self.guide).scores.assign(**{_GROUP: group})
                for group, own in self.scored.items()
            ]
            scores = pd.concat(tables)
            record.log_metrics(_means(scores))
        with replaced(folder / _SCORES) as new:  # written last, because it marks the folder as finished
            scores.to_parquet(new, index=False)
        return folder


def _means(scores: pd.DataFrame) -> dict[str, float]:
    """Return the mean of every score, named `GROUP/SCORE`."""
    return {
        f"{str(group).replace(' ', '_')}/{key}": value
        for group, table in scores.groupby(_GROUP, sort=False)
        for key, value in mean_scores(table.drop(columns=_GROUP)).items()
    }


def _mean_of_seeds(folders: Sequence[Path], group: str, metric: str) -> tuple[pd.DataFrame, list[float]]:
    """Return prompt, person and metric of each row, averaged over the seeds, and the mean of each seed."""
    tables = [table[table[_GROUP] == group] for table in (pd.read_parquet(folder / _SCORES) for folder in folders)]
    mean = sum(table[metric] for table in tables) / len(tables)
    return tables[0][KEYS].assign(**{metric: mean}), [float(table[metric].mean()) for table in tables]


def _params_of_seeds(params: Params, stage: str, changes: Mapping[str, Any], seeds: int, where: str) -> list[Params]:
    """Return the parameters of each seed, from `common.seed` on, with changes of the stage's section.

    One process trains, with the stage's effective batch size. Raises `InputError`, which begins with `where`.
    """
    section = {**getattr(params, stage).in_one_process(), **changes}
    settings = {f"{stage}.{name}": value for name, value in section.items()}
    first = params.common.seed
    return [with_settings(params, {**settings, "common.seed": first + n}, where) for n in range(seeds)]


def _require_made(**made: Path) -> None:
    """Raise `InputError` unless the file or folder of each stage is there."""
    for stage, path in made.items():
        if not path.exists():
            raise InputError(f"{path}: not made yet; run `dvc repro {stage}` first")


def _gain_text(gain: Mapping[str, float] | None) -> str:
    return f"{gain['mean']:+.4f} {bounds(gain, '+.4f')}" if gain else ""


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
    return _params_of_seeds(params, "rank_grpo", variant(name) | steps, num_seeds, f"--algorithms {name}")


def compare_algorithms(
    params: Params, paths: Paths, names: Sequence[str], num_seeds: int, max_steps: int | None
) -> Path:
    """Run every variant with every seed; print the table, write it as JSON, and return that file.

    The table has each variant's mean validation NDCG and its standard deviation over seeds, and its paired differences
    to GRPO (if it is a variant) and to the SFT model. Their 95 % bootstrap intervals are over persons, with each row's
    mean over the seeds. Lists are constrained if those of training are.

    Raises `InputError` before any training if the SFT model or the engine is missing, or a name is invalid.
    """
    variants = {name: run_params(params, name, num_seeds, max_steps) for name in dict.fromkeys(names)}
    start = paths.model(START)
    _require_made(sft=start)
    evaluation = Evaluation.of_split(paths, "validation", **{**params.evaluation(), "max_prompts": None})
    metric, constrained = evaluation.headline, params.rank_grpo.constrained
    guide = load_guide(paths.guidance, evaluation.catalog) if constrained else None
    inputs = [start, paths.split("train"), paths.split("validation"), paths.catalog, *sorted(paths.guidance.glob("*"))]
    experiment = Experiment("compare", "rank_grpo", inputs, {"comparison": evaluation}, constrained, guide)

    def train(run: Params, folder: Path, record: Run) -> tuple[Path, Any]:
        return align(run, paths, str(start), folder, record)

    tags = {**params.tags(), "algorithm": ",".join(variants), "stage": "compare"}
    with group_run("compare", tags, {"compare": {"seeds": num_seeds, "steps": max_steps}}) as record:
        folders = {name: experiment.run_seeds(name, runs, train, record) for name, runs in variants.items()}
        sft = evaluation.of_model(start, constrained, guide=guide).scores
        means: dict[str, tuple[pd.DataFrame, list[float]]] = {START: (sft[[*KEYS, metric]], [])}
        means |= {name: _mean_of_seeds(own, "comparison", metric) for name, own in folders.items()}
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
        write_json(target, result)
        record.log_artifact(target)
    _print_comparison(result)
    return target


def _print_comparison(result: dict[str, Any]) -> None:
    label, lists = metric_label(result["metric"]), "constrained" if result["constrained"] else "free"
    title = (
        f"Validation {label}, {lists} lists: {result['rows']} rows, {result['prompts']} prompts, "
        f"{result['seeds']} seeds, {result['steps']} steps"
    )
    rows = []
    for name, entry in result["algorithms"].items():
        cells = [name, f"{entry['mean']:.4f}", f"{entry['spread']:.4f}" if entry["by_seed"] else ""]
        for baseline in ("grpo", START):
            ratio = entry.get(f"ratio_to_{baseline}")
            cells += [f"{ratio:.3f}" if ratio else "", _gain_text(entry.get(f"over_{baseline}"))]
        rows.append(cells)
    header = ("algorithm", label, "spread", "x GRPO", "over GRPO (95 %)", "x SFT", "over SFT (95 %)")
    TextTable(header, rows, title).print(120)


def ablate(params: Params, paths: Paths, num_seeds: int) -> Path:
    """Train SFT on the lists after each step, from the raw to the full ones; print the table and write it as JSON.

    For each variant and group of prompts, the table has the NDCG of the demonstrations and of the SFT model, with 95 %
    bootstrap intervals over persons, and the model's paired difference to `raw`. The groups are held-out training
    prompts, if there are any, and the validation split; neither Adjust nor these models are fitted to them. All models
    train on the same prompts: those with an answer of the teacher that are not held out.

    Raises `InputError` before any training if the base model, the demonstrations or the engine is missing.
    """
    demonstrations = paths.demonstration("train")
    _require_made(base_model=paths.model("base"), demonstrations=demonstrations)
    evaluation = Evaluation.of_split(paths, "validation", **params.evaluation())
    metric, runs = evaluation.headline, _params_of_seeds(params, "sft", {}, num_seeds, "--seeds")
    learnt, validation = read_rows(demonstrations), read_rows(paths.demonstration("validation"))
    held_out = {row["prompt_id"] for row in learnt if row["held_out"]}
    rows_of = {
        "held out": [row for row in read_rows(paths.split("train")) if row["prompt_id"] in held_out],
        "validation": read_rows(paths.split("validation")),
    }
    scored = {group: evaluation.of_rows(own) for group, own in rows_of.items() if own}
    inputs = [paths.model("base"), demonstrations, paths.split("train"), paths.split("validation"), paths.catalog]
    experiment = Experiment("ablation", "sft", inputs, scored, False, None)
    rows = [row for row in learnt if row["teacher"] and not row["held_out"]]
    groups = {group: {"rows": len(own.rows)} for group, own in scored.items()}
    result: dict[str, Any] = {"metric": metric, "seeds": num_seeds, "groups": groups, "variants": {}}
    result["demonstrations_md5"] = file_md5(demonstrations)
    tags = {**params.tags(), "stage": "ablate-demonstrations"}
    baselines: dict[str, pd.DataFrame] = {}
    with group_run("ablate-demonstrations", tags, {"ablation": {"seeds": num_seeds}}) as record:
        for name, step in STEPS.items():

            def train(run: Params, folder: Path, own: Run, column: str = STEP_COLUMNS[step]) -> tuple[Path, Any]:
                return learn(run, paths, rows, column, folder, own)

            folders = experiment.run_seeds(f"SFT on {name}", runs, train, record)
            texts = {row["prompt_id"]: row[STEP_COLUMNS[step]] for row in (*learnt, *validation)}
            result["variants"][name] = entries = {}
            for group, own in scored.items():
                lists = own.of_lists([texts[row["prompt_id"]] for row in own.prompts]).scores
                models, by_seed = _mean_of_seeds(folders, group, metric)
                entries[group] = {
                    "lists": evaluation.interval(lists, metric)._asdict(),
                    "sft": evaluation.interval(models, metric)._asdict(),
                    "sft_by_seed": by_seed,
                }
                baseline = baselines.setdefault(group, models)
                if name != BASELINE:
                    gain = evaluation.gain(models, baseline, metric)
                    entries[group][f"sft_over_{BASELINE}"] = gain._asdict()
        write_json(paths.ablation, result)
        record.log_artifact(paths.ablation)
    _print_ablation(result)
    return paths.ablation


def _print_ablation(result: dict[str, Any]) -> None:
    sizes = ", ".join(f"{group} {size['rows']} rows" for group, size in result["groups"].items())
    header, rows = ["demonstrations"], [[name] for name in result["variants"]]
    for group in result["groups"]:
        header += [f"{group}: lists", "SFT (95 %)", "over raw (95 %)"]
        for row in rows:
            entry = result["variants"][row[0]][group]
            row += [f"{entry['lists']['mean']:.4f}", with_interval(entry["sft"])]
            row.append(_gain_text(entry.get(f"sft_over_{BASELINE}")))
    title = f"{metric_label(result['metric'])}, free lists: {sizes}, {result['seeds']} seeds"
    TextTable(header, rows, title).print(160)
