"""Background processes: each has its own session and log, and is identified by its id and start time."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

_POLL_SECONDS = 0.1
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class StackError(RuntimeError):
    """A server cannot be started or reached; the message has the end of its log, or a remedy."""


def identity(process: psutil.Process) -> dict[str, Any]:
    """Return a unique identity of a process: its id, the boot id, and its start in seconds since boot.

    Seconds since the epoch are not used, because they change when the system clock is set.
    """
    started = round(process.create_time() - psutil.boot_time(), 2)  # the kernel's resolution is 0.01 s
    return {"pid": process.pid, "boot": _BOOT.read_text().strip(), "started": started}


class Process:
    """One background process of a folder: its record in `run/NAME.json`, its output in `logs/NAME.log`."""

    def __init__(self, name: str, folder: Path):
        self.name = name
        self.log = folder / "logs" / f"{name}.log"
        self._record = folder / "run" / f"{name}.json"
        self._child: subprocess.Popen | None = None

    def pid(self) -> int | None:
        """Return the id of the running process, None if it has ended, even if another process reuses its id."""
        process = self._find()
        return process.pid if process else None

    def _find(self) -> psutil.Process | None:
        if self._child is not None:
            self._child.poll()  # reaps a dead child, which would stay a zombie
        try:
            record = json.loads(self._record.read_text())
            process = psutil.Process(record["pid"])
            same = identity(process) == record and process.status() != psutil.STATUS_ZOMBIE
        except (FileNotFoundError, psutil.NoSuchProcess):
            return None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise StackError(
                f"{self._record} is damaged: if {self.name} is still running, end it by hand, then remove this file"
            ) from error
        return process if same else None

    def _orphans(self) -> list[psutil.Process]:
        """Return the processes of the recorded process's session that outlived it.

        The kernel does not reuse a session's id until its last process has ended.
        """
        if self._find() is not None or not self._record.exists():
            return []
        record = json.loads(self._record.read_text())
        same_boot = record["boot"] == _BOOT.read_text().strip()
        if not same_boot or _session_of(record["pid"]) is not None:  # another process has that id now
            return []
        return [process for process in psutil.process_iter() if _session_of(process.pid) == record["pid"]]

    def stop_orphans(self, seconds: float = 20) -> None:
        """End processes that outlived the recorded process; they could still serve requests and write to its store."""
        orphans = self._orphans()
        for process in orphans:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        psutil.wait_procs(orphans, timeout=seconds)
        while orphans := self._orphans():  # repeated for processes that were started in between
            for process in orphans:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(orphans, timeout=seconds)

    def started(self) -> float:
        """Return the start time of the running process in seconds since the epoch; 0 if it has ended."""
        process = self._find()
        return process.create_time() if process else 0.0

    def start(self, command: list[str], environment: Mapping[str, str], cwd: Path) -> None:
        """Start the process if it is not running, and record its identity."""
        if self._find():
            return
        for path in (self.log, self._record):
            path.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            self._child = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        new = self._record.with_suffix(".new")
        new.write_text(json.dumps(identity(psutil.Process(self._child.pid))))
        new.replace(self._record)

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until the process is ready; raise `StackError` with the end of its log if it ends or takes too long."""
        deadline = time.monotonic() + seconds
        while True:
            if self._find() is None:  # checked first, because another process may answer on its port
                raise StackError(f"{self.name} has ended; the end of {self.log}:\n{self.tail()}")
            if ready():
                return
            if time.monotonic() > deadline:
                raise StackError(
                    f"{self.name} is not ready after {seconds:.0f} s; the end of {self.log}:\n{self.tail()}"
                )
            time.sleep(_POLL_SECONDS)

    def stop(self, sent: signal.Signals = signal.SIGTERM, seconds: float = 20) -> None:
        """Send a signal to the process and its group, wait for their end, and kill those that are still running.

        Its descendants in other sessions, and processes that outlived it, are ended too. Not so with SIGKILL, which
        simulates a crash.
        """
        process = self._find()
        if process is not None:
            family = [process, *process.children(recursive=True)]
            group = [member for member in family if _group(member) == process.pid]
            os.killpg(process.pid, sent)
            _, alive = psutil.wait_procs(group, timeout=seconds)
            if sent != signal.SIGKILL:
                alive += [member for member in family if member not in group]
            for member in alive:
                if member.is_running():
                    member.kill()
            psutil.wait_procs(alive, timeout=seconds)
        if sent != signal.SIGKILL:
            self.stop_orphans(seconds)
        self._record.unlink(missing_ok=True)

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of the log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def _session_of(pid: int) -> int | None:
    """Return the session id of a process; None if it has ended."""
    try:
        return os.getsid(pid) if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE else None
    except (ProcessLookupError, psutil.NoSuchProcess):
        return None


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None
