"""The native stack of one folder."""

import fcntl
import shutil
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stack import provision
from stack.process import Process, StackError
from stack.services import ROWS, SERVICES
from stack.settings import Settings, check_ports, choose_ports, is_free


class Stack:
    """The servers with data, logs and secrets in `folder`.

    `ports` sets ports of servers for the next `up` (0: any free port). Raises `StackError` for invalid ports.
    """

    def __init__(self, folder: Path | str, ports: Mapping[str, int] | None = None):
        self.folder = Path(folder).absolute()
        self._fixed = dict(ports or {})
        check_ports(self._fixed)
        self._processes = {name: Process(name, self.folder) for name in SERVICES}

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            self.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("w")
        except OSError as error:
            raise StackError(f"{self.folder} cannot be used ({error.strerror}): give another with --folder") from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _settings(self) -> Settings:
        return Settings.load(self.folder)

    def _process(self, name: str) -> Process:
        if name not in self._processes:
            raise StackError(f"service {name!r}: no such service; give one of {', '.join(SERVICES)}")
        return self._processes[name]

    def up(self, services: Iterable[str] = tuple(SERVICES)) -> None:
        """Start the services that are not running, and wait until all are ready; a repeated call changes nothing.

        Raises `StackError` with the end of the log if a server does not start.
        """
        wanted = list(services)
        for name in wanted:
            self._process(name)
        with self._alone():
            settings = self._settings()
            for process in self._processes.values():
                process.stop_orphans()  # they would keep the port, and the server would start on another
            self._choose_ports(settings)
            settings.save()
            for row in ROWS:
                names = [name for name in row if name in wanted]
                for name in names:
                    self._launch(name, settings)
                for name in names:
                    self._wait(name, settings)

    def _choose_ports(self, settings: Settings) -> None:
        """Choose the ports: running servers keep theirs, starting servers use the folder's ports if these are free."""
        if not any(process.pid() for process in self._processes.values()):
            settings.ports = choose_ports(settings.ports, self._fixed)
        elif any(port and port != settings.ports.get(name) for name, port in self._fixed.items()):
            raise StackError("ports cannot change while servers run: stop them first (python -m stack down)")
        self._fixed = {}

    def _launch(self, name: str, settings: Settings) -> None:
        process = self._process(name)
        if process.pid() is None:
            process.stop_orphans()
            if name in settings.ports and not is_free(settings.ports[name]):
                raise StackError(
                    f"port {settings.ports[name]} of {name} is taken: stop the process that uses it, or stop all "
                    "servers (python -m stack down) and start them again on other ports"
                )
            launch = SERVICES[name].launch(settings)
            process.start(launch.command, launch.environment, launch.cwd)

    def _wait(self, name: str, settings: Settings) -> None:
        service, process = SERVICES[name], self._process(name)
        process.wait_until(lambda: service.ready(settings, process.started()), service.seconds)
        for step in service.steps:
            try:
                provision.STEPS[step](settings.provisioning())
            except provision.FAILURES as error:
                # Only the first line, because others may contain the statement with a password.
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                raise StackError(
                    f"{name} runs, but creating its {step} failed: {reason}; see {process.log}. If a password is "
                    f"rejected, restore the {self.folder / 'servers.json'} that the data were made with. Then try again"
                ) from error

    def down(self, remove: bool = False) -> None:
        """Stop the folder's services in reverse order; the data stay unless `remove` is true."""
        if not self.folder.exists():
            return
        with self._alone():
            for row in reversed(ROWS):
                for name in row:
                    self.stop(name)
        if remove:
            shutil.rmtree(self.folder)

    def start(self, name: str) -> None:
        """Start one service on its port, and wait until it is ready."""
        settings = self._settings()
        self._launch(name, settings)
        self._wait(name, settings)

    def stop(self, name: str, sent: signal.Signals | None = None) -> None:
        """Send a signal to one service's process group, and wait for its end; the default ends it cleanly."""
        in_order = signal.SIGTERM if name in ("s3", "mlflow", "serve") else signal.SIGINT
        self._process(name).stop(in_order if sent is None else sent)

    def pid(self, name: str) -> int | None:
        """Return the process id of a service, which leads its group; None if it is not running."""
        return self._process(name).pid()

    def log(self, name: str) -> Path:
        """Return the path of a service's log."""
        return self._process(name).log

    def address(self, name: str) -> str:
        """Return the URL of a server."""
        return self._settings().address(name)

    def environment(self) -> dict[str, str]:
        """Return the environment variables for clients, as in `FOLDER/env`."""
        return self._settings().clients()

    def secrets(self) -> dict[str, str]:
        """Return the servers' own secrets, for tests and backups."""
        return dict(self._settings().secrets)
