"""`examples/node.sh` passes a scheduler's signal on, and ends with the stage's status."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_project import ROOT

# Stands for the commands of a node: it prints what runs where; its status is 142 and the number of signals.
_COMMAND = f"""#!{sys.executable}
import os, signal, sys, time
signals = []
signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
name, node = os.path.basename(sys.argv[0]), os.environ
print(name, *sys.argv[1:], "on node", node["NODE_RANK"], "of", node["NNODES"], flush=True)
if node["STATUS"] == "wait":
    while not signals:
        time.sleep(0.02)
    sys.exit(142 + len(signals))
sys.exit(int(node["STATUS"]))
"""


def _start(folder: Path, rank: int, status: str) -> subprocess.Popen:
    for name in ("convrec", "python"):
        (folder / name).write_text(_COMMAND)
        (folder / name).chmod(0o755)
    slurm = {"SLURM_STEP_NUM_NODES": "2", "SLURM_PROCID": str(rank), "STATUS": status}
    own = {name: value for name, value in os.environ.items() if name not in ("NNODES", "NODE_RANK")}
    environment = {**own, **slurm, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.Popen(
        [ROOT / "examples" / "node.sh", "sft"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("rank", "status", "command"),
    [(0, 0, "python -m tasks.dvc_stage sft on node 0 of 2"), (1, 75, "convrec run sft on node 1 of 2")],
)
def test_node_0_runs_the_stage_under_dvc_and_the_status_is_the_stage_s(tmp_path, rank, status, command):
    node = _start(tmp_path, rank, str(status))
    assert node.communicate(timeout=60)[0].splitlines() == [command] and node.returncode == status


def test_a_signal_to_the_script_s_processes_reaches_the_stage(tmp_path):
    node = _start(tmp_path, 1, "wait")
    assert node.stdout is not None
    assert node.stdout.readline().startswith("convrec run sft")
    os.killpg(node.pid, signal.SIGTERM)  # as Slurm does
    assert node.wait(60) == 143
