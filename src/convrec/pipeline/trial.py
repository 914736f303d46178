"""Stages that really run in a scratch project on the most expensive data: the memory and the time that they take.

The scratch project has the parameters and the catalog of the real one. Its rows are the longest ones, as many as
`STEPS` optimizer steps take, its demonstrations are the lists with the most tokens, and its weights are thrown away.
The evidence is that of at most `SEEN` training rows.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

from convrec.data.catalog import Catalog
from convrec.data.catalog_requests import PER_LIST
from convrec.data.conversations import STEP_COLUMNS, distinct_prompts, read_rows, transcript, write_rows
from convrec.data.parsing import format_list
from convrec.demonstrations.prompts import choose_prompts
from convrec.generation.pretrained import load_tokenizer
from convrec.pipeline.memory import last_remedy, smaller_settings, with_settings
from convrec.project.config.params import Params, parse_params
from convrec.project.errors import EXIT_BAD_INPUT, InputError, says_out_of_memory
from convrec.project.graph import GRAPH
from convrec.project.machine import GIB, family, gpu_bytes, resident_bytes
from convrec.project.paths import CHECKPOINTS, CONFIGS, Paths
from convrec.training.arguments import CHECKPOINTS_KEPT
from convrec.training.callbacks import read_history
from convrec.training.launch import LOG, SUPERVISED

STAGES = ("base_model", "evidence", "sft", "guidance", "rank_grpo", "evaluate")
SEEN = 500  # longest conversations, of which the evidence is
STEPS = 3  # optimizer steps of a trial; the first one also warms up
_POLL_SECONDS = 0.1
_NOT_INHERITED = {"MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "CONVREC_PARENT_RUN_ID", LOG, "DVC_STAGE"}
_MODELS, _STATE = 3, 3  # written models; a checkpoint's size in models: weights and AdamW's two moments


@dataclass(frozen=True)
class Trial:
    """One stage that ran: its exit status, its duration, its highest use of memory, and the end of its output.

    - `peak`: resident memory of all its processes, in bytes.
    - `gpu_peaks`: used memory of each GPU in bytes; other processes on the GPU count.
    - `seconds_per_step`: of the last step; None for stages without steps.
    - `exceeded`: whether memory did not suffice.
    - `changed`: the settings that memory requires.
    - `whole_seconds`: the time of a training if all its steps were as long; None if unknown.
    """

    stage: str
    status: int
    seconds: float
    peak: int
    gpu_peaks: Sequence[int]
    seconds_per_step: float | None
    exceeded: bool
    output: str
    changed: Mapping[str, Any] = field(default_factory=dict)
    whole_seconds: float | None = None


def trial_params(params: Params) -> Params:
    """Return the parameters of the scratch project: those of the real one, but for the number of steps."""
    raw = params.model_dump()
    embedder, rewards = raw["demonstrations"]["embedder"], raw["rank_grpo"]["rewards"]
    for section, key in ((raw["base_model"], "name"), (embedder, "name"), (rewards, "model")):
        if section[key] and Path(section[key]).is_dir():  # the scratch project is in another folder
            section[key] = str(Path(section[key]).resolve())
    raw["base_model"]["embedded"]["conversations"] = 0  # no training
    raw["sft"] |= {"num_train_epochs": 1.0, "checkpoint_step": STEPS, "save_steps": STEPS}
    raw["sft"]["validation_prompts"] = min(params.sft.validation_prompts, params.evaluate.batch_size)
    raw["rank_grpo"] |= {"max_steps": STEPS, "start": "sft", "since": None, "save_steps": STEPS}
    raw["rank_grpo"] |= {"num_train_epochs": STEPS * 100.0, "decay": None}
    raw["guidance"]["fit_prompts"] = min(params.guidance.fit_prompts, params.evaluate.batch_size)
    raw["evaluate"]["max_prompts"] = params.evaluate.batch_size
    return parse_params(raw, "params.yaml")


class ScratchProject:
    """The project in `folder` in which the trials of the project at `paths` run."""

    def __init__(self, params: Params, paths: Paths, folder: Path):
        self.params, self.paths, self.own = trial_params(params), paths, Paths(folder)
        self.own.processed.mkdir(parents=True)
        for name in (CONFIGS, GRAPH):
            (folder / name).symlink_to((paths.root / name).resolve())
        for file in paths.processed.glob("*.parquet"):
            (self.own.processed / file.name).symlink_to(file.resolve())
        self.change({})

    def change(self, settings: dict[str, Any]) -> None:
        """Write params.yaml with changed parameters, by dotted name."""
        self.params = with_settings(self.params, settings)
        (self.own.root / "params.yaml").write_text(json.dumps(self.params.model_dump()))  # JSON is also YAML

    def make_rows_longest(self) -> None:
        """Replace held-out rows and demonstrations by the longest ones, once the base model's tokenizer is there.

        Evidence also gets the validation rows: knowing their ground truth, it gets weights whatever the model, so that
        later stages are guided.
        """
        sft, rank_grpo, batch = self.params.sft, self.params.rank_grpo, self.params.evaluate.batch_size
        number = STEPS * sft.rows_per_step
        prompts = max(1, STEPS * rank_grpo.rows_per_step // rank_grpo.num_generations)
        self._train = train = _longest(self.paths.split("train"), max(number, prompts))
        for name in ("validation", "test"):
            self._replace(name, _longest(self.paths.split(name), batch))
        seen = _longest(self.paths.split("train"), SEEN)
        self._replace("train", pd.concat([seen, pd.read_parquet(self.own.split("validation"))]))
        learned = {STEP_COLUMNS[sft.lists]: self._longest_list()}
        repeated = train.iloc[[place % len(train) for place in range(number)]]
        demonstrations = repeated[["prompt_id", "messages"]].assign(**learned)
        self.own.demonstrations.mkdir()
        for name in ("train", "validation"):
            write_rows(demonstrations, self.own.demonstration(name))

    def shorten_training(self) -> None:
        """Replace the training rows by the longest ones, once the evidence has seen all."""
        self._replace("train", self._train)

    def _replace(self, split: str, rows: pd.DataFrame) -> None:
        self.own.split(split).unlink()
        write_rows(rows, self.own.split(split))

    def _longest_list(self) -> str:
        catalog = Catalog.read(self.paths.catalog)
        tokenizer = load_tokenizer(self.own.model("base"), trust_remote_code=self.params.base_model.trust_remote_code)
        tokens = tokenizer([str(item) for item in catalog.items], add_special_tokens=False)["input_ids"]
        order = sorted(range(len(catalog)), key=lambda index: -len(tokens[index]))
        return format_list([str(catalog.items[index]) for index in order[: self.params.common.list_length]])

    def run(self, stage: str, limit: int | None) -> Trial:
        """Run a stage; it is ended, and counts as out of memory, if its processes use more than `limit` bytes."""
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        environment[SUPERVISED] = str(os.getpid())  # it ends with this process
        log = self.own.root / f"{stage}.log"
        shutil.rmtree(self.own.root / CHECKPOINTS / stage, ignore_errors=True)  # of a trial that exceeded the limit
        began, peak, exceeded = time.monotonic(), 0, False
        gpu_peaks, _ = gpu_bytes()
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "convrec.cli", "run", stage],
                cwd=self.own.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            watched = psutil.Process(process.pid)
            try:
                while process.poll() is None:
                    peak = max(peak, resident_bytes(watched))
                    gpu_peaks = [max(pair) for pair in zip(gpu_peaks, gpu_bytes()[0], strict=True)]
                    exceeded = limit is not None and peak > limit
                    if exceeded:
                        break
                    time.sleep(_POLL_SECONDS)
            finally:
                for member in family(watched):
                    with suppress(psutil.NoSuchProcess):
                        member.kill()
                status = process.wait()
        text = log.read_text(errors="replace")
        exceeded |= status == -signal.SIGKILL or says_out_of_memory(text)
        seconds = time.monotonic() - began
        return Trial(stage, status, seconds, peak, gpu_peaks, self._seconds_per_step(stage), exceeded, text)

    def _seconds_per_step(self, stage: str) -> float | None:
        files = list((self.own.root / CHECKPOINTS / stage).glob("*/history.jsonl"))
        newest = max(files, key=lambda file: file.stat().st_mtime, default=None)
        rows = [] if newest is None else read_history(newest)
        times = {row["step"]: row["seconds/elapsed"] for row in rows if "loss" in row}
        return times[STEPS] - times[STEPS - 1] if {STEPS, STEPS - 1} <= times.keys() else None


def _longest(split: Path, number: int) -> pd.DataFrame:
    """Return the rows of the longest conversations, at most so many, one for each conversation."""
    rows = distinct_prompts(read_rows(split))
    lengths = [len(transcript(messages)) for (messages,) in rows.values("messages")]
    return pd.DataFrame(list(rows[np.argsort(-np.array(lengths), kind="stable")[:number]]))


def run_trials(params: Params, paths: Paths, limit: int | None) -> Iterator[Trial]:
    """Run every stage's most expensive steps in a scratch project, and yield each trial.

    If a stage runs out of memory, it runs again with settings of less memory and the same result until it fits, so the
    last trial of each of `STAGES` fits. Raises `InputError` if a stage ends with an error, or fits with no settings.
    """
    # Git ignores this folder, and `make clean` removes what a killed preflight leaves in it.
    place = paths.root.resolve() / CHECKPOINTS
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="preflight-", dir=place) as folder:
        scratch = ScratchProject(params, paths, Path(folder) / "project")
        for stage in STAGES:
            changed: dict[str, Any] = {}
            while True:
                trial = scratch.run(stage, limit)
                yield replace(trial, changed=changed, whole_seconds=_whole_seconds(params, paths, trial))
                if trial.status == 0 and not trial.exceeded:
                    break
                if not trial.exceeded:
                    kind = "" if trial.status == EXIT_BAD_INPUT else f"ended with status {trial.status}: "
                    raise InputError(f"{stage}: {kind}{trial.output.strip().rpartition(chr(10))[2]}")
                settings = smaller_settings(scratch.params, stage)
                if settings is None:
                    used = f"{trial.peak / GIB:.1f} GiB"
                    remedy = last_remedy(stage)
                    raise InputError(f"{stage}: memory does not suffice ({used}) with any batch size; {remedy}")
                scratch.change(settings)
                changed = changed | settings
            if stage == "base_model":
                _require_disk(params, paths, scratch.own.model("base"))
                scratch.make_rows_longest()
            elif stage == "guidance":
                scratch.shorten_training()


def _require_disk(params: Params, paths: Paths, model: Path) -> None:
    """Raise `InputError` if the disk has no room for the models and the checkpoints of a run."""
    size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    trained = size if params.base_model.dtype == "float32" else 2 * size  # trainings keep float32
    checkpoints = 2 * CHECKPOINTS_KEPT + 1
    needed, free = _MODELS * size + _STATE * checkpoints * trained, shutil.disk_usage(paths.root).free
    if needed > free:
        raise InputError(
            f"models and checkpoints need about {needed / GIB:.0f} GiB of disk, {free / GIB:.0f} GiB are free; free "
            "some"
        )


def _whole_seconds(params: Params, paths: Paths, trial: Trial) -> float | None:
    """Return the time that all steps of a training would take if all were as long as those of the trial."""
    if trial.seconds_per_step is None:
        return None
    rows = read_rows(paths.split("train"))
    if trial.stage == "sft":
        wanted, number = params.demonstrations, rows["prompt_id"].nunique() * (1 + PER_LIST)
        if not params.sft.likes:
            number = len(choose_prompts(distinct_prompts(rows), wanted.until, wanted.train_share, params.common.seed))
        steps = math.ceil(number / params.sft.rows_per_step) * params.sft.num_train_epochs
        return trial.seconds_per_step * min(steps, params.sft.checkpoint_step or math.inf)
    config = params.rank_grpo
    sequences = len(rows) * config.num_generations * config.num_train_epochs
    return trial.seconds_per_step * min(config.max_steps or math.inf, math.ceil(sequences / config.rows_per_step))
