"""The lists of the stage `evaluate` by several workers, before the stage, which then finds them in its cache."""

import sys
from itertools import cycle, islice

from prefect import task, unmapped
from prefect.context import FlowRunContext
from prefect.task_runners import ThreadPoolTaskRunner

from convrec.config.params import load_params
from convrec.hardware.machine import visible_gpus
from tasks.dvc_stage import RETRIES, Stage, gpu_slot, run_logged, tool_environment
from tasks.process import end_commands


@task(task_run_name="{stage.name}, shard {number} of {workers}", **RETRIES)
def write_shard(stage: Stage, number: int, workers: int, gpus: str | None) -> None:
    """Generate one shard of the stage's lists, on these GPUs (None: on those that the worker sees).

    Raises `StageFailed`; only `StageInterrupted` is retried, and finished lists are kept.
    """
    environment = tool_environment()
    if gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpus
    command = [sys.executable, "-m", "convrec.cli", "run", stage.name, "--shard", f"{number}/{workers}"]
    run_logged(f"{stage.name}, shard {number} of {workers}", command, environment, stage.timeout_hours)


def write_lists(stage: Stage, workers: int) -> None:
    """Generate the stage's lists in shards, by one task for each worker on the flow's task runner.

    The workers together hold one slot of the limit `gpu`. With Prefect's own task runner they are processes of this
    machine, and its GPUs are divided among them. If one fails, or the flow is interrupted, the others end, too.
    """
    context = FlowRunContext.get()
    is_local = context is not None and isinstance(context.task_runner, ThreadPoolTaskRunner)
    gpus = divide(visible_gpus() if is_local else [], load_params().evaluate.vllm_tensor_parallel_size, workers)
    with gpu_slot(stage.gpu):
        try:
            write_shard.map(unmapped(stage), list(range(1, workers + 1)), workers, gpus).result()
        except BaseException:
            end_commands()
            raise


def divide(gpus: list[str], size: int, workers: int) -> list[str | None]:
    """Return each worker's GPUs, `size` of them, as CUDA_VISIBLE_DEVICES names them; None if there are too few.

    If there are more workers than such groups, they share them in turn.
    """
    groups = [",".join(gpus[first : first + size]) for first in range(0, len(gpus) - size + 1, size)]
    return list(islice(cycle(groups), workers)) if groups else [None] * workers
