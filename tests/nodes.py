"""Two nodes of a training, both on this machine, each started as a scheduler starts it."""

import signal
import subprocess
from pathlib import Path

import psutil

from tests.registry.tracking.server import free_port
from tests.small_project import ROOT, own_environment


def start_nodes(project: Path, stage: str) -> list[subprocess.Popen]:
    """Start a stage on both; each prints into its pipe."""
    own = {**own_environment(), "OMP_NUM_THREADS": "1", "SLURM_STEP_NUM_NODES": "2"}
    own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [ROOT / "examples" / "node.sh", stage]
    return [subprocess.Popen(command, cwd=project, env={**own, "SLURM_PROCID": rank}, **streams) for rank in "01"]


def end_nodes(nodes: list[subprocess.Popen]) -> list[tuple[int, str]]:
    """Wait for both; return their exit statuses and the output that was not read yet."""
    outputs = [node.communicate(timeout=300)[0] for node in nodes]
    return [(node.returncode, output) for node, output in zip(nodes, outputs, strict=True)]


def signal_at_step(nodes: list[subprocess.Popen], step: int, number: signal.Signals) -> None:
    """Send a signal to the training process of the second node once the first one prints a step."""
    for line in nodes[0].stdout or ():
        if f"step {step - 1}/" in line:
            family = psutil.Process(nodes[1].pid).children(recursive=True)
            (victim,) = [process for process in family if "RANK" in process.environ()]
        if f"step {step}/" in line:
            victim.send_signal(number)
            return
