"""Background processes: each leads a session of its own, has a log, and is known again by its id and its start time."""

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
    """A server that cannot be started or reached; the message says what its log says, and what to do."""


def identity(process: psutil.Process) -> dict[str, Any]:
    """Return what no other process has: its id, the boot, and its start in seconds since then.

    Seconds of the epoch would not do: they change when the system's clock is set.
    """
    started = round(process.create_time() - psutil.boot_time(), 2)  # the kernel counts hundredths
    return {"pid": process.pid, "boot": _BOOT.read_text().strip(), "started": started}


class Process:
    """One background process of a folder: its record in `run/NAME.json`, its output in `logs/NAME.log`."""

    def __init__(self, name: str, folder: Path):
        self.name = name
        self.log = folder / "logs" / f"{name}.log"
        self._record = folder / "run" / f"{name}.json"
        self._child: subprocess.Popen | None = None

    def pid(self) -> int | None:
        """Return the id of the running process, None where it has ended (or another process has its id by now)."""
        process = self._find()
        return process.pid if process else None

    def _find(self) -> psutil.Process | None:
        if self._child is not None:
            self._child.poll()  # a dead child stays a zombie until it is asked for
        try:
            record = json.loads(self._record.read_text())
            process = psutil.Process(record["pid"])
            same = identity(process) == record and process.status() != psutil.STATUS_ZOMBIE
        except (FileNotFoundError, psutil.NoSuchProcess):
            return None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise StackError(
                f"{self._record} is damaged: end {self.name} by hand where it still runs, then remove this file"
            ) from error
        return process if same else None

    def _orphans(self) -> list[psutil.Process]:
        """Return what still runs of the recorded process's session, where that process itself has ended.

        Until the last of them ends, the kernel gives their session's id to no other process.
        """
        if self._find() is not None or not self._record.exists():
            return []
        record = json.loads(self._record.read_text())
        same_boot = record["boot"] == _BOOT.read_text().strip()
        if not same_boot or _session_of(record["pid"]) is not None:  # another process leads a session of that id
            return []
        return [process for process in psutil.process_iter() if _session_of(process.pid) == record["pid"]]

    def stop_orphans(self, seconds: float = 20) -> None:
        """End what outlives the recorded process, which was killed: it may serve on, and write to the same store."""
        orphans = self._orphans()
        for process in orphans:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        psutil.wait_procs(orphans, timeout=seconds)
        while orphans := self._orphans():  # again, for what one of them started meanwhile
            for process in orphans:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(orphans, timeout=seconds)

    def started(self) -> float:
        """Return when the running process started, in seconds of the epoch; 0 where it has ended."""
        process = self._find()
        return process.create_time() if process else 0.0

    def start(self, command: list[str], environment: Mapping[str, str], cwd: Path) -> None:
        """Start the process, if it does not run yet, and note who it is."""
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
        """Wait until the process is ready; raises `StackError` with the end of its log if it ends or takes too long."""
        deadline = time.monotonic() + seconds
        while True:
            if self._find() is None:  # asked first: what answers in its place may be a stranger
                raise StackError(f"{self.name} has ended; the end of {self.log}:\n{self.tail()}")
            if ready():
                return
            if time.monotonic() > deadline:
                raise StackError(
                    f"{self.name} is not ready after {seconds:.0f} s; the end of {self.log}:\n{self.tail()}"
                )
            time.sleep(_POLL_SECONDS)

    def stop(self, sent: signal.Signals = signal.SIGTERM, seconds: float = 20) -> None:
        """Send a signal to the process and its group, and wait for their end; what then still runs is killed.

        What it started in sessions of its own is ended, too, and what outlives it where it was killed before; except
        after SIGKILL: a crash does not tidy up.
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
    """Return the id of the session of a process; None where it has ended."""
    try:
        return os.getsid(pid) if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE else None
    except (ProcessLookupError, psutil.NoSuchProcess):
        return None


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None
