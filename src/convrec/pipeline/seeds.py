"""Runs the trainings of an experiment: every variant with every seed, each trained and scored once, in nested runs."""

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
from convrec.project.atomic import replaced
from convrec.project.code import code_digest, code_files
from convrec.project.config.params import Params
from convrec.project.paths import Paths
from convrec.registry.tracking import Run, data_tags, group_run, stage_run
from convrec.training.checkpoints import training_folder

logger = logging.getLogger(__name__)

Train = Callable[[Params, Path, Run], tuple[Path, Any]]  # trains in a folder; returns the checkpoint and the tokenizer
SCORES = "scores.parquet"  # in the folder of a finished training
_GROUP = "group"


@dataclass(frozen=True)
class Experiment:
    """The common settings of an experiment's trainings.

    - `module`: the experiment's module; the results depend on its code and imports.
    - `stage`: the stage that is trained, from the model of the stage `start`.
    - `inputs`: the files that the trainings read.
    - `scored`: the rows that the models are scored on, by group.
    - `evaluation`: how they are scored; if `constrained`, with lists of catalog items only.
    """

    name: str
    module: str
    stage: str
    start: str
    inputs: Sequence[Path]
    scored: Mapping[str, list[Row]]
    evaluation: Evaluation
    constrained: bool
    paths: Paths
    parent: Run

    def run_seeds(
        self, name: str, runs: Sequence[Params], tags: Mapping[str, str], train: Train, **settings: Any
    ) -> list[Path]:
        """Train and score a variant with the parameters of every seed; return the folders, one per seed.

        `settings` identify the variant's results in addition to the parameters. Finished trainings are not repeated.
        """
        shared = {key: value for key, value in (runs[0].tags() | data_tags(self.paths)).items() if key != "seed"}
        values = {self.stage: getattr(runs[0], self.stage).model_dump()}
        with group_run(name, {**shared, **tags, "stage": "variant"}, values, self.parent.run_id) as record:
            folders = [self._run(name, run, tags, train, settings, record) for run in runs]
            record.log_metrics(pd.DataFrame([_means(pd.read_parquet(f / SCORES)) for f in folders]).mean().to_dict())
        return folders

    def _run(
        self, name: str, params: Params, tags: Mapping[str, str], train: Train, settings: Mapping[str, Any], parent: Run
    ) -> Path:
        seed, common, section = params.common.seed, params.common, getattr(params, self.stage).model_dump()
        parameters = {
            **settings,
            **section,
            **common.prompt_parameters(),
            **common.model_dump(include={"cutoffs", "repetition_penalty"}),
            "dtype": params.base_model.dtype,
            "scored_length": params.evaluate.max_completion_length,
            "code": code_digest(code_files([self.module])),
        }
        folder = training_folder(self.name, parameters, self.inputs)
        if (folder / SCORES).is_file():
            logger.info("%s, seed %d: already finished (%s)", name, seed, folder)
            return folder
        logger.info("%s, seed %d: training in %s", name, seed, folder)
        values = {"common": common.model_dump(), self.stage: section}
        all_tags = {**params.tags(), **data_tags(self.paths), **tags, "stage": self.stage}
        with stage_run(f"{name} seed {seed}", values, all_tags, folder / "run.json", parent.run_id) as record:
            checkpoint, tokenizer = train(params, folder, record)
            model, trust = folder / "model", params.base_model.trust_remote_code
            start = self.paths.model(self.start)
            export_model(checkpoint, start, tokenizer, model, common.repetition_penalty, trust)
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
    groups = scores.groupby(_GROUP, sort=False)
    return {
        f"{group.replace(' ', '_')}/{key}": value
        for group, table in groups
        for key, value in mean_scores(table.drop(columns=_GROUP)).items()
    }


def mean_of_seeds(folders: Sequence[Path], group: str, metric: str) -> tuple[pd.DataFrame, list[float]]:
    """Return prompt, person and metric of each row, averaged over the seeds, and the mean of each seed."""
    tables = [table[table[_GROUP] == group] for table in (pd.read_parquet(folder / SCORES) for folder in folders)]
    mean = sum(table[metric] for table in tables) / len(tables)
    return tables[0][KEYS].assign(**{metric: mean}), [float(table[metric].mean()) for table in tables]
