"""`convrec run STAGE`: one stage of the pipeline, with its section of params.yaml."""

import importlib
import logging
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

from cyclopts import Group

from convrec.pipeline.commands import PIPELINE, add_group
from convrec.project.errors import InputError, Stopped, is_out_of_memory
from convrec.project.locks import hold_stage
from convrec.project.paths import Paths
from convrec.project.stage_record import recorded
from convrec.training.launch import Nodes, end_processes, is_main_process, launch, read_nodes

if TYPE_CHECKING:
    from convrec.project.config.base import Section
    from convrec.project.config.params import Params

logger = logging.getLogger(__name__)

TEXTS = {
    "data": "Read, check and split conversations and catalog.",
    "evidence": "Learn from training what people will like, as scores of the catalog.",
    "demonstrations": "Ground the teacher's lists in the catalog: Remap, Reflect, Adjust.",
    "base_model": "Create the embedded model, or download the base model.",
    "sft": "Train the model on the demonstrations.",
    "guidance": "Fit the weight of the evidence that guides the model's lists.",
    "rank_grpo": "Align the SFT model with what users liked.",
    "evaluate": "Score all systems on the test split.",
    "report": "Write the HTML report.",
}
STAGES = tuple(TEXTS)
stages = add_group(
    "run",
    PIPELINE,
    "Run one stage of the pipeline again; `dvc repro` runs those that have changed.\n\nExample: convrec run sft",
    group_commands=Group("Stages, in order"),
    synonym=STAGES,
)


def run(stage: str) -> int | None:
    """Run the stage, in several processes if its section sets that; always close its record."""
    from convrec.project.config.params import load_params
    from convrec.project.graph import missing_inputs

    params = load_params()
    section: Any = getattr(params, stage, None)
    if "RANK" not in os.environ:
        nodes = read_nodes()
        _check_nodes(stage, section, nodes)
        if missing := missing_inputs(stage):
            remedy = f"run `dvc repro {stage}`, which first makes what the stage reads"
            raise InputError(f"{', '.join(missing)}: not made yet; {remedy}")
        if nodes.rank == 0:
            hold_stage(stage)
        if getattr(section, "launch", None) is not None:
            return launch(stage, section.launch, section.num_processes, nodes)
    elif is_main_process():  # it may still write a checkpoint after its launcher was killed
        hold_stage(f"{stage}.main")
    signal.signal(signal.SIGTERM, _stop)  # so that the record is closed; trainings write a checkpoint first
    paths = Paths()
    if not is_main_process():
        from convrec.registry.tracking import SilentRun

        _work(stage, params, paths, SilentRun())
        end_processes()
        return None
    with recorded(stage, paths.record(stage)) as writer:
        from convrec.registry.tracking import stage_run

        values = {"common": params.common.model_dump(), **({stage: section.model_dump()} if section else {})}
        with stage_run(stage, values, params.tags()) as run:
            writer.update(run_id=run.run_id)
            _work(stage, params, paths, run)
            end_processes()
    return None


def _work(stage: str, params: "Params", paths: Paths, record: Any) -> None:
    """Do the stage's work; if memory does not suffice, go on with smaller batches that give the same result.

    A training goes on from its last checkpoint. Raises `InputError` with the settings to change if there is no smaller
    batch, if the stage has several processes, which end together, or if vLLM holds memory in this process.
    """
    from convrec.pipeline.memory import out_of_memory_message, smaller_settings, with_settings
    from convrec.project.graph import stage_params

    module = importlib.import_module(f"convrec.pipeline.stages.{stage}")
    # Both are asked before the work: vLLM sets RANK itself.
    can_go_on = "RANK" not in os.environ
    can_go_on &= stage != "rank_grpo" or params.rank_grpo.rollouts != "vllm_colocate"
    while True:
        try:
            return module.run(stage_params(params, stage), paths, record)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            smaller = smaller_settings(params, stage) if can_go_on else None
            if smaller is None:
                raise InputError(out_of_memory_message(params, stage, reason)) from error
        params = with_settings(params, smaller)
        changes = ", ".join(f"{name}: {str(value).lower()}" for name, value in smaller.items())
        logger.warning(
            "out of memory (%s); going on with %s, which gives the same result; params.yaml still has the old values",
            reason[:200],
            changes,
        )
        from convrec.project.device import release_memory  # imports torch, which not all stages need

        release_memory()


def _stop(number: int, _frame: Any) -> None:
    raise Stopped(f"stopped by {signal.Signals(number).name}; start again to go on")


def _check_nodes(stage: str, section: "Section | None", nodes: Nodes) -> None:
    """Raise `InputError` if this stage does not run on this node, or not on several."""
    from convrec.project.config.training import Training

    if isinstance(section, Training):
        if nodes.count > 1 and section.launch is None:
            raise InputError(
                f"NNODES = {nodes.count}, but {stage}.launch = null; set it to a file of configs/accelerate/, or unset "
                "NNODES"
            )
    elif nodes.rank > 0:
        raise InputError(f"NODE_RANK = {nodes.rank}: {stage} runs on one node; run it where NODE_RANK is 0")


for place, (name, text) in enumerate(TEXTS.items()):
    stages.command(partial(run, name), name=name, help=text, sort_key=place)
