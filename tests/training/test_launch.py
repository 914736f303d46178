"""How the processes of a launch end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from convrec.training.launch import rank_process

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.parametrize(("end", "status"), [("exit", 3), ("raise", 1)])
def test_a_process_that_ends_amid_collectives_has_its_own_status(tmp_path, end, status):
    """It was -6 in one of the two, of most pairs: "terminate called without an active exception"."""
    command = [sys.executable, "-m", "tests.training.leaving", str(tmp_path / "store"), end]
    environment = {**os.environ, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    pair = [
        subprocess.Popen(command, cwd=ROOT, env={**environment, "RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    output = [process.communicate(timeout=120)[1] for process in pair]
    assert [process.returncode for process in pair] == [status, status], output
    assert all("ValueError: of this process" in text for text in output) == (end == "raise")


def test_a_process_of_its_own_goes_on_after_the_block(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit), rank_process():
        sys.exit(3)
