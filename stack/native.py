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
    """The servers whose data, logs and secrets are in `folder`.

    `ports` fixes some at the next `up` (0: any free one). Raises `StackError` for those that cannot be.
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
            raise StackError(f"{self.folder} cannot be used ({error.strerror}): name another with --folder") from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _settings(self) -> Settings:
        return Settings.load(self.folder)

    def _process(self, name: str) -> Process:
        if name not in self._processes:
            raise StackError(f"service {name!r}: there is none of that name; name one of {', '.join(SERVICES)}")
        return self._processes[name]

    def up(self, services: Iterable[str] = tuple(SERVICES)) -> None:
        """Start what does not run yet, and wait until all is ready; repeated, it changes nothing.

        Raises `StackError` with the end of the log of the server that did not start.
        """
        wanted = list(services)
        for name in wanted:
            self._process(name)
        with self._alone():
            settings = self._settings()
            for process in self._processes.values():
                process.stop_orphans()  # they would keep its port, and its server would start on another
            self._choose_ports(settings)
            settings.save()
            for row in ROWS:
                names = [name for name in row if name in wanted]
                for name in names:
                    self._launch(name, settings)
                for name in names:
                    self._wait(name, settings)

    def _choose_ports(self, settings: Settings) -> None:
        """Give the settings their ports: what runs keeps them, what starts keeps those of its folder that are free."""
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
                    f"port {settings.ports[name]} of {name} is taken: stop what listens there, or stop all servers "
                    "(python -m stack down) and start them again, which chooses another"
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
                # Further lines may repeat the statement, and a password in it.
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                raise StackError(
                    f"{name} runs, but giving it its {step} failed: {reason}; see {process.log}. Passwords that are "
                    f"refused: put back the {self.folder / 'servers.json'} that its data were made with. Then try again"
                ) from error

    def down(self, remove: bool = False) -> None:
        """Stop what this folder's records name, last started first; the data stay unless they are to be removed."""
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
        """Send one service's group a signal (by default the one that ends it in order), and wait for its end."""
        in_order = signal.SIGTERM if name in ("s3", "mlflow") else signal.SIGINT
        self._process(name).stop(in_order if sent is None else sent)

    def pid(self, name: str) -> int | None:
        """Return the process id of a service, which leads its group; None where it does not run."""
        return self._process(name).pid()

    def log(self, name: str) -> Path:
        """Return the file of a service's output."""
        return self._process(name).log

    def address(self, name: str) -> str:
        """Return the URL of a server."""
        return self._settings().address(name)

    def environment(self) -> dict[str, str]:
        """Return the variables with which clients use the servers, as in `FOLDER/env`."""
        return self._settings().clients()

    def secrets(self) -> dict[str, str]:
        """Return the servers' own secrets, for tests and backups."""
        return dict(self._settings().secrets)
