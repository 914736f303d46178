"""Prefect's temporary server: the one that flows use, and its end with theirs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SCRIPT = """
import sys
from flows.temporary_server import start_temporary_server
from prefect.client.orchestration import get_client
from prefect.server.api.server import SubprocessASGIServer

start_temporary_server()
with get_client(sync_client=True) as client:
    client.api_version()
print(SubprocessASGIServer().server_process.pid, flush=True)
sys.stdin.readline()
"""


def _start(home: Path) -> subprocess.Popen[str]:
    """Start a process that has a server, and prints its id."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment = {**kept, "PREFECT_HOME": str(home)}
    return subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stdin=-1, stdout=-1, stderr=-1, text=True)


@pytest.mark.slow
def test_servers_that_start_at_once_all_work_and_end_with_their_process(tmp_path):
    """The two find no database: each would make its tables."""
    processes = [_start(tmp_path), _start(tmp_path)]
    for process, number in zip(processes, (signal.SIGKILL, signal.SIGTERM), strict=True):
        line = process.stdout.readline()
        assert line, process.stderr.read()
        server = psutil.Process(int(line))
        assert "uvicorn" in server.cmdline()
        process.send_signal(number)
        assert process.wait(10) == -number
        psutil.wait_procs([server], timeout=10)
        assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
        process.communicate()


@pytest.mark.slow
def test_a_database_that_the_server_cannot_use_is_told(tmp_path):
    """Prefect would start the server again and again."""
    (tmp_path / "prefect.db").write_bytes(b"no database" * 100)
    process = _start(tmp_path)
    assert "does not start with the database in" in process.communicate("\n", timeout=120)[1]
    assert process.returncode == 1
