"""Several processes: a stage starts itself again under Accelerate, one process a GPU."""

import os
import sys
from pathlib import Path

from convrec.config import Section, Training
from convrec.errors import InputError


def is_main_process() -> bool:
    """Return whether this is the only process of a run, or the first of several."""
    return int(os.environ.get("RANK", "0")) == 0


def end_processes() -> None:
    """Let the processes of a launch end together: one that leaves early may take down one that still writes."""
    if "RANK" not in os.environ:
        return
    import torch.distributed as dist  # noqa: PLC0415  (the command line starts without torch)

    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def launch_command(stage: str, section: Section) -> list[str] | None:
    """Return the command that runs the stage in several processes; None where this process is to run it itself.

    Raises `InputError` where the launch file does not exist.
    """
    if not isinstance(section, Training) or section.launch is None or "RANK" in os.environ:
        return None
    launch = section.launch
    if not Path(launch).is_file():
        raise InputError(f"{stage}.launch = {launch!r}: no such file; configs/accelerate/ holds those of the project")
    options = ["--config_file", launch, "--num_processes", str(section.num_processes)]
    return [sys.executable, "-m", "accelerate.commands.launch", *options, "-m", "convrec.cli", stage]
