"""`convrec preflight`: what a run needs is checked, and its most expensive steps really run, before the run starts."""

import math
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from convrec.config.params import Params
from convrec.data.conversations import distinct_prompts, read_rows
from convrec.demonstrations.prompts import choose_prompts
from convrec.errors import InputError
from convrec.experiments.machine_checks import machine_checks, raise_problems
from convrec.experiments.memory import LESS_MEMORY, set_options, smaller_settings
from convrec.experiments.trial import ScratchProject, Trial, is_refused, rows_per_step
from convrec.hardware.machine import GIB, gpu_bytes
from convrec.paths import CHECKPOINTS, Paths
from convrec.training.nodes import read_nodes

STAGES = ("base_model", "sft", "rank_grpo", "evaluate")
_MODELS, _STATE = 3, 3  # written models; a checkpoint's size in models: weights and AdamW's two moments


@dataclass(frozen=True)
class Forecast:
    """A stage's last trial, the settings that memory requires, and its whole time in seconds, None if unknown."""

    trial: Trial
    changed: dict[str, Any]
    seconds: float | None


def run_trials(params: Params, paths: Paths, limit: int | None, show: Callable[[Trial], None]) -> dict[str, Forecast]:
    """Run every stage's most expensive steps in a scratch project; return the forecasts by stage.

    If a stage runs out of memory, it runs again with settings of less memory and the same result until it fits.
    `show` gets each trial. Raises `InputError` if a stage ends with an error or does not fit with any settings.
    """
    forecasts: dict[str, Forecast] = {}
    # Git ignores this folder, and `make clean` removes what a killed preflight leaves in it.
    place = paths.root.resolve() / CHECKPOINTS
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="preflight-", dir=place) as folder:
        scratch = ScratchProject(params, paths, Path(folder) / "project")
        for stage in STAGES:
            changed: dict[str, Any] = {}
            while True:
                trial = scratch.run(stage, limit)
                show(trial)
                if trial.status == 0 and not trial.exceeded:
                    break
                settings = smaller_settings(scratch.params, stage) if trial.exceeded else None
                if settings is None:
                    raise InputError(_failure(trial))
                scratch.change(settings)
                changed |= settings
            forecasts[stage] = Forecast(trial, changed, _whole_seconds(params, paths, trial))
            if stage == "base_model":
                _require_disk(params, paths, scratch.own.model("base"))
                scratch.make_rows_longest()
    return forecasts


def _require_disk(params: Params, paths: Paths, model: Path) -> None:
    """Raise `InputError` if the disk has no room for the models and the checkpoints of a run."""
    size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    trained = size if params.base_model.dtype == "float32" else 2 * size  # trainings keep float32
    checkpoints = params.sft.save_total_limit + params.rank_grpo.save_total_limit + 1
    needed, free = _MODELS * size + _STATE * checkpoints * trained, shutil.disk_usage(paths.root).free
    if needed > free:
        raise InputError(
            f"models and checkpoints need about {needed / GIB:.0f} GiB of disk, {free / GIB:.0f} GiB are free; free "
            "some, or lower save_total_limit"
        )


def _failure(trial: Trial) -> str:
    last = [line for line in trial.output.splitlines() if line.strip()][-1:]
    if trial.exceeded:
        return f"{trial.stage}: memory does not suffice ({trial.peak / GIB:.1f} GiB) with any batch size; {LESS_MEMORY}"
    kind = "" if is_refused(trial) else f"ended with status {trial.status}: "
    return f"{trial.stage}: {kind}{''.join(last)}"


def _whole_seconds(params: Params, paths: Paths, trial: Trial) -> float | None:
    """Return the time that all steps of a training would take if all were as long as those of the trial."""
    if trial.seconds_per_step is None:
        return None
    rows = read_rows(paths.split("train"))
    if trial.stage == "sft":
        wanted, seed = params.demonstrations, params.common.seed
        number = len(choose_prompts(distinct_prompts(rows), wanted.until, wanted.train_share, seed))
        steps = math.ceil(number * (1 + wanted.variants) / rows_per_step(params.sft)) * params.sft.num_train_epochs
        return trial.seconds_per_step * min(steps, params.sft.checkpoint_step or math.inf)
    config = params.rank_grpo
    sequences = len(rows) * config.group_size * config.num_train_epochs * config.num_iterations
    return trial.seconds_per_step * (config.max_steps or math.ceil(sequences / rows_per_step(config)))


def preflight(params: Params, paths: Paths, *, fast: bool, memory: float | None, price: float | None) -> None:
    """Check the machine and, unless `fast`, run the most expensive steps of every stage; print both.

    `memory` limits each stage's resident memory in GiB; the default is the memory that is free now. `price` is that of
    a machine hour. Raises `InputError` if a check fails, or settings have to change, or for steps on several nodes.
    """
    nodes = read_nodes().count
    if nodes > 1 and not fast:
        raise InputError(
            f"NNODES = {nodes}: preflight runs its steps on one node; give --fast, or unset NNODES and set "
            "num_processes to the GPUs of one node"
        )
    console = Console(highlight=False, soft_wrap=True)
    checks = []
    for check in machine_checks(params, paths):
        mark = "[red]✗[/red]" if check.remedy else "[green]✓[/green]"
        console.print(f"{mark} {escape(f'{check.name}: {check.found}')}")
        checks.append(check)
    raise_problems(checks)
    if fast:
        return
    for name in ("train", "validation", "test"):
        paths.require_split(name)
    limit = int(memory * GIB) if memory is not None else psutil.virtual_memory().available

    def show(trial: Trial) -> None:
        result = "out of memory" if trial.exceeded else "fits" if trial.status == 0 else f"status {trial.status}"
        console.print(f"  {trial.stage}: {result} ({trial.seconds:.0f} s)")

    console.print(f"\nLongest prompts and lists, with at most {limit / GIB:.1f} GiB of memory:")
    forecasts = run_trials(params, paths, limit, show)
    console.print(_table(forecasts, price))
    changed = {name: value for forecast in forecasts.values() for name, value in forecast.changed.items()}
    if changed:
        raise InputError(
            f"memory does not suffice for the parameters; these settings fit and train the same: "
            f"convrec profile {params.common.profile} {set_options(changed)}"
        )
    console.print("Everything fits. Start the run: python -m flows.train")


def _table(forecasts: dict[str, Forecast], price: float | None) -> Table:
    sizes = gpu_bytes()[1]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0))
    headings = ["stage", "memory", *(f"GPU {index}" for index in range(len(sizes))), "s/step", "all steps, at most"]
    for heading in (*headings, *(["cost, at most"] if price is not None else [])):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for stage, forecast in forecasts.items():
        trial = forecast.trial
        cells = [stage, f"{trial.peak / GIB:.2f} GiB"]
        cells += [
            f"{used / GIB:.1f} of {size / GIB:.0f} GiB" for used, size in zip(trial.gpu_peaks, sizes, strict=True)
        ]
        cells.append("" if trial.seconds_per_step is None else f"{trial.seconds_per_step:.2f}")
        hours = None if forecast.seconds is None else forecast.seconds / 3600
        cells.append("" if hours is None else f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min")
        if price is not None:
            cells.append("" if hours is None else f"{hours * price:.2f}")
        table.add_row(*cells)
    return table
