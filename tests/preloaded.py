"""`convrec` from forks of one process that has imported the libraries: an import takes longer than a small stage.

`python -m tests.preloaded SOCKET` answers the program of `preloaded_environment`, and runs each command in a process of
its own, with the caller's arguments, folder, variables and streams.
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
    with _listen(address) as listener:  # from now on, commands wait until the libraries are imported
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.preloaded", str(listener.fileno())], pass_fds=[listener.fileno()]
        )
    try:
        yield folder / "bin" / "python"
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder)


def _listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen()
    return listener


def _run(arguments: list[str], folder: str, variables: dict[str, str], streams: list[int]) -> None:
    """Run a command in this process, which has just been forked, and end it."""
    from convrec.training import launch  # noqa: PLC0415

    launch._PARENT = os.getppid()  # noted at the import
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    from convrec.cli import main  # noqa: PLC0415

    main(arguments)


def serve(listener: socket.socket) -> None:
    """Answer commands until this process is killed."""
    from convrec.hardware.allocator import keep_freed_memory  # noqa: PLC0415  (before torch is imported)
    from convrec.hardware.threads import limit_threads  # noqa: PLC0415

    limit_threads()
    keep_freed_memory()
    from convrec.commands.stage import STAGES  # noqa: PLC0415

    for name in ("tracking", *(f"stages.{stage}" for stage in STAGES)):
        importlib.import_module(f"convrec.{name}")
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
