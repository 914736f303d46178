"""`convrec compare`: variants of the alignment over seeds, from one SFT model and one set of data.

Each training is made and scored once, in nested MLflow runs. An interrupted comparison resumes when
it is started again.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from convrec.classical.guidance import Guidance
from convrec.evaluation.comparison import KEYS
from convrec.evaluation.evaluation import Evaluation
from convrec.evaluation.headline import bounds
from convrec.evaluation.metrics import metric_label
from convrec.evaluation.scoring import mean_scores
from convrec.generation.export import export_model
from convrec.generation.trie import Guide
from convrec.pipeline.memory import with_settings
from convrec.pipeline.stages.rank_grpo import align
from convrec.project.atomic import replaced
from convrec.project.code import TRAINERS, code_files, make_key
from convrec.project.config.params import Params
from convrec.project.config.rank_grpo import BY_RANK
from convrec.project.errors import InputError
from convrec.project.graph import stage_params
from convrec.project.paths import CHECKPOINTS, Paths
from convrec.project.results import write_json
from convrec.project.table import TextTable
from convrec.registry.tracking import Run, open_run, stage_run
from convrec.training.checkpoints import last_checkpoint

logger = logging.getLogger(__name__)

START = "sft"  # the model that every run starts from, a row of the table
_NAME = re.compile(r"([a-z_]+)(?::([a-z_]+(?::[0-9]+(?:\.[0-9]+)?)?))?")
_SCORES = "scores.parquet"  # in the folder of a finished training


@dataclass(frozen=True)
class Experiment:
    """What all trainings have in common: the project, and how the lists of each model are written and scored.

    If `constrained`, lists have catalog items only, guided by the `guide`.
    """

    paths: Paths
    evaluation: Evaluation
    constrained: bool
    guide: Guide | None

    def score(self, model: Path) -> pd.DataFrame:
        """Return the scores of a model's lists."""
        return self.evaluation.of_model(model, self.constrained, guide=self.guide).scores

    def run_seeds(self, name: str, runs: Sequence[Params], parent: Run) -> list[Path]:
        """Train and score a variant with the parameters of every seed; return the folders, one per seed.

        Finished trainings are not repeated.
        """
        tags = {key: value for key, value in runs[0].tags().items() if key != "seed"}
        tags |= {"variant": name, "stage": "variant"}
        with open_run(name, tags, runs[0].model_dump(include={"rank_grpo"}), parent.run_id) as record:
            folders = [self._run(name, run, record) for run in runs]
            record.log_metrics(pd.DataFrame([_means(pd.read_parquet(f / _SCORES)) for f in folders]).mean().to_dict())
        return folders

    def _run(self, name: str, params: Params, parent: Run) -> Path:
        common, paths, start = params.common, self.paths, self.paths.model(START)
        trained = stage_params(params, "rank_grpo").keyed("rank_grpo")
        parameters = {"variant": name, **trained, "lists": params.list_settings(), "cutoffs": common.cutoffs}
        inputs = [start, paths.split("train"), paths.split("validation"), paths.catalog]
        inputs += sorted([*paths.guidance.glob("*"), *paths.evidence.rglob("*.safetensors")])
        folder = CHECKPOINTS / "compare" / str(make_key(parameters, inputs, code_files([__name__]), TRAINERS))
        if (folder / _SCORES).is_file():
            logger.info("%s, seed %d: already finished (%s)", name, common.seed, folder)
            return folder
        logger.info("%s, seed %d: training in %s", name, common.seed, folder)
        values = params.model_dump(include={"common", "rank_grpo"})
        tags = {**params.tags(), "variant": name, "stage": "rank_grpo"}
        with stage_run(f"{name} seed {common.seed}", values, tags, parent.run_id) as record:
            checkpoint, tokenizer = align(params, paths, str(start), folder, record, keep_last=True)
            model, trust = folder / "model", params.base_model.trust_remote_code
            export_model(checkpoint, start, tokenizer, model, common.repetition_penalty, trust)
            scores = self.score(model)
            record.log_metrics(_means(scores))
        with replaced(folder / _SCORES) as new:  # written last, because it marks the folder as finished
            scores.to_parquet(new, index=False)
        return folder


def _means(scores: pd.DataFrame) -> dict[str, float]:
    return {f"comparison/{key}": value for key, value in mean_scores(scores).items()}


def variant(name: str) -> dict[str, Any]:
    """Return the parameters of `rank_grpo` for the name of a variant.

    A name is `ALGORITHM` (such as `grpo`, `dpo`), or `rank_grpo:RETURNS`, also with `rank_grpo_public`. The clip range
    has the published values.

    Raises `InputError` for a name of another form.
    """
    found = _NAME.fullmatch(name)
    if found is None or (found[2] and found[1] not in BY_RANK):
        raise InputError(f"--algorithms: {name!r}: give a name; only rank_grpo has returns, as in rank_grpo:exp:2")
    changes: dict[str, Any] = {"algorithm": found[1], "start": START}
    if found[2]:
        changes["returns"] = found[2]
    return changes | {"epsilon": None}


def run_params(params: Params, name: str, num_seeds: int, max_steps: int | None) -> list[Params]:
    """Return the parameters of a variant's runs, one per seed, from `common.seed` on.

    One process trains, with the stage's effective batch size.
    """
    changes = {**params.rank_grpo.in_one_process(), **variant(name)}
    changes |= {} if max_steps is None else {"max_steps": max_steps}
    settings = {f"rank_grpo.{field}": value for field, value in changes.items()}
    seeds = range(params.common.seed, params.common.seed + num_seeds)
    return [with_settings(params, {**settings, "common.seed": seed}, f"--algorithms {name}") for seed in seeds]


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
    if not start.exists():
        raise InputError(f"{start}: not made yet; run `dvc repro {START}` first")
    evaluation = Evaluation.of_split(paths, "validation", **{**params.evaluation(), "max_prompts": None})
    metric, constrained = evaluation.headline, params.rank_grpo.constrained
    guide = Guidance.load(paths.guidance, evaluation.catalog, training=paths.evidence) if constrained else None
    experiment = Experiment(paths, evaluation, constrained, guide)
    tags = {**params.tags(), "algorithm": ",".join(variants), "stage": "compare"}
    with open_run("compare", tags, {"compare": {"seeds": num_seeds, "steps": max_steps}}) as record:
        folders = {name: experiment.run_seeds(name, runs, record) for name, runs in variants.items()}
        sft = experiment.score(start)
        means: dict[str, tuple[pd.DataFrame, list[float]]] = {START: (sft[[*KEYS, metric]], [])}
        for name, own in folders.items():
            tables = [pd.read_parquet(folder / _SCORES) for folder in own]
            mean = tables[0][KEYS].assign(**{metric: sum(table[metric] for table in tables) / len(tables)})
            means[name] = mean, [float(table[metric].mean()) for table in tables]
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
            ratio, gain = entry.get(f"ratio_to_{baseline}"), entry.get(f"over_{baseline}")
            cells += [f"{ratio:.3f}" if ratio else "", f"{gain['mean']:+.4f} {bounds(gain, '+.4f')}" if gain else ""]
        rows.append(cells)
    header = ("algorithm", label, "spread", "x GRPO", "over GRPO (95 %)", "x SFT", "over SFT (95 %)")
    TextTable(header, rows, title).print(120)
