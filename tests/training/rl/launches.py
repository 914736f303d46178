"""Programs that train in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.registry.tracking.server import free_port
from tests.small_project import ROOT


def accelerate(config: str, processes: int, folder: Path, *, on_cpu: bool) -> list[str]:
    """Return Python's arguments that launch a module, which is to follow, with a file of configs/accelerate/."""
    file = ROOT / "configs" / "accelerate" / f"{config}.yaml"
    if on_cpu:
        text, file = file.read_text(), folder / f"{config}.yaml"
        file.write_text(text + "use_cpu: true\n")
    options = ["--config_file", str(file), "--num_processes", str(processes), "--main_process_port", str(free_port())]
    return ["-m", "accelerate.commands.launch", *options, "-m"]


def run_program(command: list[str], *, on_cpu: bool = True, **variables: str) -> None:
    """Run a program to its end, with these environment variables; it must succeed."""
    own_tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": own_tools, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    own |= {"DS_ACCELERATOR": "cpu"} if on_cpu else {}
    environment = {**os.environ, **own, **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
