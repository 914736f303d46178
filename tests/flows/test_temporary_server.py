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

print("ready", flush=True)
sys.stdin.readline()
start_temporary_server()
with get_client(sync_client=True) as client:
    client.api_version()
print(SubprocessASGIServer().server_process.pid, flush=True)
sys.stdin.readline()
"""


def _start(home: Path) -> subprocess.Popen[str]:
    """Start a process that has a server once it is told so."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment = {**kept, "PREFECT_HOME": str(home)}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=environment, stdin=-1, stdout=-1, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def _answer(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _has_ended(process: psutil.Process) -> bool:
    psutil.wait_procs([process], timeout=10)
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_servers_that_start_at_once_all_work_and_end_with_their_process(tmp_path):
    """The two find no database: each would make its tables."""
    processes = [_start(tmp_path), _start(tmp_path)]
    for process in processes:
        _answer(process)
    servers = []
    for process in processes:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        servers.append(psutil.Process(int(line)))
    for process, server, number in zip(processes, servers, (signal.SIGKILL, signal.SIGTERM), strict=True):
        assert "uvicorn" in server.cmdline()
        process.send_signal(number)
        assert process.wait(10) == -number
        assert _has_ended(server)
        process.communicate()


@pytest.mark.slow
def test_a_database_that_the_server_cannot_use_is_told(tmp_path):
    """Prefect would start the server again and again."""
    (tmp_path / "prefect.db").write_bytes(b"no database" * 100)
    process = _start(tmp_path)
    assert "does not start with the database in" in process.communicate("\n", timeout=120)[1]
    assert process.returncode == 1
