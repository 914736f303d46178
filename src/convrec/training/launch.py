"""Several processes: a stage starts itself again under Accelerate, one process a GPU."""

import os
import sys
from pathlib import Path

from convrec.errors import InputError

LAUNCHED = ("sft", "rank_grpo")  # the stages that can run in several processes


def is_main_process() -> bool:
    """Return whether this is the only process of a run, or the first of several."""
    return int(os.environ.get("RANK", "0")) == 0


def launch_command(stage: str, launch: str | None, num_processes: int) -> list[str] | None:
    """Return the command that runs the stage in several processes; None where this process is to run it itself.

    Raises `InputError` where the launch file does not exist.
    """
    if launch is None or stage not in LAUNCHED or "RANK" in os.environ:
        return None
    if not Path(launch).is_file():
        raise InputError(f"common.launch = {launch!r}: no such file; configs/accelerate/ holds those of the project")
    options = ["--config_file", launch, "--num_processes", str(num_processes)]
    return [sys.executable, "-m", "accelerate.commands.launch", *options, "-m", "convrec.cli", stage]
