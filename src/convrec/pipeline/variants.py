"""Trains variants of a stage with several seeds: each training is made and scored once, in nested MLflow runs."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from convrec.data.conversations import Row
from convrec.evaluation.comparison import KEYS
from convrec.evaluation.evaluation import Evaluation
from convrec.evaluation.scoring import mean_scores
from convrec.generation.export import export_model
from convrec.pipeline.memory import with_settings
from convrec.project.atomic import replaced
from convrec.project.code import code_digest, code_files
from convrec.project.config.params import Params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.registry.tracking import Run, data_tags, group_run, stage_run
from convrec.training.checkpoints import training_folder

logger = logging.getLogger(__name__)

Train = Callable[[Params, Path, Run], tuple[Path, Any]]  # trains in a folder; returns the checkpoint and the tokenizer
SCORES = "scores.parquet"  # in the folder of a finished training
_GROUP = "group"


def params_of_seeds(params: Params, stage: str, changes: Mapping[str, Any], num_seeds: int, where: str) -> list[Params]:
    """Return the parameters of each seed, from `common.seed` on, with changes of the stage's section.

    One process trains, with the stage's effective batch size. Raises `InputError`, which begins with `where`.
    """
    section = {**getattr(params, stage).in_one_process(), **changes}
    settings = {f"{stage}.{name}": value for name, value in section.items()}
    seeds = range(params.common.seed, params.common.seed + num_seeds)
    return [with_settings(params, {**settings, "common.seed": seed}, where) for seed in seeds]


def require_made(**made: Path) -> None:
    """Raise `InputError` unless the file or folder of each stage is there."""
    for stage, path in made.items():
        if not path.exists():
            raise InputError(f"{path}: not made yet; run `dvc repro {stage}` first")


@dataclass(frozen=True)
class Experiment:
    """The common settings of an experiment's trainings.

    - `module`: the experiment's module; the results depend on its code and imports.
    - `stage`: the stage that is trained.
    - `inputs`: the files that the trainings read; the model that they start from is the first.
    - `scored`: the rows that the models are scored on, by group.
    - `evaluation`: how they are scored; if `constrained`, with lists of catalog items only.
    """

    module: str
    stage: str
    inputs: Sequence[Path]
    scored: Mapping[str, list[Row]]
    evaluation: Evaluation
    constrained: bool
    paths: Paths

    def run_seeds(self, name: str, runs: Sequence[Params], train: Train, parent: Run) -> list[Path]:
        """Train and score a variant with the parameters of every seed; return the folders, one per seed.

        Finished trainings are not repeated.
        """
        tags = {key: value for key, value in (runs[0].tags() | data_tags(self.paths)).items() if key != "seed"}
        tags |= {"variant": name, "stage": "variant"}
        values = runs[0].model_dump(include={self.stage})
        with group_run(name, tags, values, parent.run_id) as record:
            folders = [self._run(name, run, train, record) for run in runs]
            record.log_metrics(pd.DataFrame([_means(pd.read_parquet(f / SCORES)) for f in folders]).mean().to_dict())
        return folders

    def _run(self, name: str, params: Params, train: Train, parent: Run) -> Path:
        common, trust = params.common, params.base_model.trust_remote_code
        parameters = {
            "variant": name,
            **getattr(params, self.stage).model_dump(),
            **common.prompt_parameters(),
            **common.model_dump(include={"cutoffs", "repetition_penalty"}),
            "dtype": params.base_model.dtype,
            "scored_length": params.evaluate.max_completion_length,
            "code": code_digest(code_files([self.module])),
        }
        folder = training_folder(self.module.rpartition(".")[2], parameters, self.inputs)
        if (folder / SCORES).is_file():
            logger.info("%s, seed %d: already finished (%s)", name, common.seed, folder)
            return folder
        logger.info("%s, seed %d: training in %s", name, common.seed, folder)
        values = params.model_dump(include={"common", self.stage})
        tags = {**params.tags(), **data_tags(self.paths), "variant": name, "stage": self.stage}
        with stage_run(f"{name} seed {common.seed}", values, tags, folder / "run.json", parent.run_id) as record:
            checkpoint, tokenizer = train(params, folder, record)
            model = folder / "model"
            export_model(checkpoint, self.inputs[0], tokenizer, model, common.repetition_penalty, trust)
            tables = [
                self.evaluation.of_rows(rows).of_model(model, self.constrained).scores.assign(**{_GROUP: group})
                for group, rows in self.scored.items()
            ]
            scores = pd.concat(tables)
            record.log_metrics(_means(scores))
        with replaced(folder / SCORES) as new:  # written last, because it marks the folder as finished
            scores.to_parquet(new, index=False)
        return folder


def _means(scores: pd.DataFrame) -> dict[str, float]:
    """Return the mean of every score, named `GROUP/SCORE`."""
    return {
        f"{str(group).replace(' ', '_')}/{key}": value
        for group, table in scores.groupby(_GROUP, sort=False)
        for key, value in mean_scores(table.drop(columns=_GROUP)).items()
    }


def mean_of_seeds(folders: Sequence[Path], group: str, metric: str) -> tuple[pd.DataFrame, list[float]]:
    """Return prompt, person and metric of each row, averaged over the seeds, and the mean of each seed."""
    tables = [table[table[_GROUP] == group] for table in (pd.read_parquet(folder / SCORES) for folder in folders)]
    mean = sum(table[metric] for table in tables) / len(tables)
    return tables[0][KEYS].assign(**{metric: mean}), [float(table[metric].mean()) for table in tables]


def gain_text(gain: Mapping[str, float] | None) -> str:
    """Return a paired difference with its interval, with four digits; nothing without one."""
    return f"{gain['mean']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}]" if gain else ""
