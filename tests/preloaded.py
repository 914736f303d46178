"""`convrec` from forks of one process that has imported the libraries: an import takes longer than a small stage.

`python -m tests.preloaded FD` listens on this descriptor to the program `convrec` of `preloaded_environment`. A command
runs in a process of its own, with the arguments, folder, variables and streams of its caller.
"""

import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from convrec.cli import _set_up, main
from convrec.pipeline.commands.stage import STAGES
from convrec.training import launch
from tests.small_project import ROOT

# What commands import besides their stage, some of it late.
LIBRARIES = (
    "convrec.registry.measure",
    "convrec.registry.versions",
    "mlflow.genai.scorers",
    "mlflow.store.model_registry.sqlalchemy_store",
    "mlflow.store.tracking.sqlalchemy_store",
    "transformers.models.qwen2.modeling_qwen2",
)
_LARGEST = 2**17  # bytes of a command with its variables
_PROGRAM = """#!{python} -IS
import json, os, socket, sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    command = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)])
    socket.send_fds(server, [command.encode()], [0, 1, 2])
    sys.exit(int(server.recv(16) or 1))
"""


@contextmanager
def preloaded_environment() -> Iterator[Path]:
    """Make a virtual environment like this one, with such a `convrec`; return its Python."""
    folder, own = Path(tempfile.mkdtemp(prefix="convrec-preloaded-")), Path(sys.prefix)
    address = str(folder / "socket")
    (folder / "bin").mkdir()
    shutil.copy(own / "pyvenv.cfg", folder)
    (folder / "lib").symlink_to(own / "lib")
    for program in (own / "bin").iterdir():
        if program.name != "convrec":
            (folder / "bin" / program.name).symlink_to(program)
    command = folder / "bin" / "convrec"
    command.write_text(_PROGRAM.format(python=sys.executable, address=address))
    command.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()  # from now on, commands wait until the libraries are imported
        number = listener.fileno()
        server = subprocess.Popen([sys.executable, "-m", "tests.preloaded", str(number)], cwd=ROOT, pass_fds=[number])
    try:
        yield folder / "bin" / "python"
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder)


def _run(arguments: list[str], folder: str, variables: dict[str, str], streams: list[int]) -> None:
    """Run a command in this process, which has just been forked, and end it."""
    launch._PARENT = os.getppid()  # noted at the import
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    main(arguments)


def serve(listener: socket.socket) -> None:
    """Answer commands until this process is killed."""
    _set_up()  # some libraries read its variables when they are imported
    for name in (*LIBRARIES, *(f"convrec.pipeline.stages.{stage}" for stage in STAGES)):
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork has no threads"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the children
    while True:
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        message, streams, *_ = socket.recv_fds(connection, _LARGEST, 3)
        child = os.fork()
        if child == 0:
            connection.close()
            _run(*json.loads(message), streams)
            sys.exit()
        _, status = os.waitpid(child, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
