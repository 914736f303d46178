"""The scripts of the examples: shell syntax, Slurm's options, and the commands that they run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from simple_slurm import Slurm

from convrec.cli import load_commands
from convrec.pipeline.commands.stage import STAGES

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parent.parent.parent
PIPELINE = ROOT / "examples" / "slurm" / "pipeline.sh"
OPTION = re.compile(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", re.MULTILINE)


@pytest.mark.parametrize("script", [PIPELINE, ROOT / "examples" / "node.sh"], ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    program = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([program, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_slurm_knows_the_options():
    text = PIPELINE.read_text()
    found = OPTION.findall(text)
    assert len(found) == text.count("\n#SBATCH") > 5, "every line is read"
    job = Slurm(**{name.replace("-", "_"): value or True for name, value in found})
    assert (job.namespace.nodes, job.namespace.signal) == ("2", "B:TERM@600")
    (seconds,) = re.findall(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=(\d+)", text)
    assert int(seconds) < 600, "time for a checkpoint before the job's limit"


def test_the_job_runs_every_stage_in_order():
    found = re.findall(r"for stage in ([a-z_ ]+);|^on_all_nodes (\w+)$", PIPELINE.read_text(), re.MULTILINE)
    assert tuple(" ".join(map("".join, found)).split()) == STAGES


def test_the_server_s_options_are_known():
    (command,) = re.findall(r"convrec (vllm-server .*?) &$", PIPELINE.read_text(), re.MULTILINE)
    function, given, _ = load_commands().parse_args(shlex.split(command))
    assert function.__name__ == "vllm_server"
    assert given.arguments == {"model": "models/sft", "port": 8000, "training": True, **given.arguments}
