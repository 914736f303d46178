"""The servers of docker-compose.yml as processes of this machine, with the commands and variables of that file.

PostgreSQL is the system's, and moto stands in for the object store. Host names, ports, folders and secrets of the
containers are replaced by those of this machine.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import psutil
import psycopg2
import requests
from ruamel.yaml import YAML

from convrec.service.app.keys import new_key
from stack import provision
from tests.small_project import ROOT, own_environment
from tests.tools import require

T = TypeVar("T")
HOST = "127.0.0.1"
PORTS = {"postgres": 5432, "s3": 7070, "mlflow": 5000, "prefect": 4200, "serve": 8000, "worker": 8080}
# In start order; the servers of a row start together.
ROWS = (("postgres", "s3"), ("mlflow", "prefect"), ("worker", "serve"))
STEPS = {"postgres": "databases", "s3": "bucket", "mlflow": "team", "prefect": "pools"}  # of stack/provision.py
_HEALTH = {"mlflow": "health", "prefect": "api/health", "worker": "health", "serve": "health", "s3": ""}
_FOLDERS = ("/data", "/scratch", "/work")  # of the containers


def wait_for(ask: Callable[[], T], seconds: float, what: str) -> T:
    """Return the first true answer; fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(0.05)
    return answer


class Servers:
    """Servers with data and logs in `folder`, which the user postgres must reach; workers clone `repository`."""

    def __init__(self, folder: Path):
        self.folder, self.repository = folder, ROOT
        self.keys = folder / "SERVE_KEYS"
        self.key = new_key(self.keys, "team")
        names = re.findall(r"^(\w+)=$", (ROOT / ".env.example").read_text(), re.MULTILINE)
        self.secrets = {name: token_hex(20) for name in [*names, "POSTGRES_PASSWORD"]}
        with ExitStack() as open_sockets:  # together, so that no port is found twice
            probes = {name: open_sockets.enter_context(socket.socket()) for name in PORTS}
            for probe in probes.values():
                probe.bind((HOST, 0))
            self.ports = {name: int(probe.getsockname()[1]) for name, probe in probes.items()}
        self._services = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]
        self._processes: dict[str, subprocess.Popen] = {}

    def address(self, name: str) -> str:
        """Return the URL of a server."""
        return f"http://{HOST}:{self.ports[name]}"

    def database(self, name: str, user: str = "postgres") -> dict[str, Any]:
        """Return how a user connects to a database."""
        secret = self.secrets["POSTGRES_PASSWORD" if user == "postgres" else f"{user.upper()}_DB_PASSWORD"]
        return {"host": HOST, "port": self.ports["postgres"], "user": user, "password": secret, "dbname": name}

    def prefect(self, path: str, **values: Any) -> Any:
        """Post to Prefect's API as the team, and return its answer; without values, get."""
        method, auth = "post" if values else "get", ("team", self.secrets["PREFECT_PASSWORD"])
        url = f"{self.address('prefect')}/api/{path}"
        answer = requests.request(method, url, json=values or None, auth=auth, timeout=60)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def clients(self) -> dict[str, str]:
        """Return the variables of somebody who uses the servers: those that docs/stack.md lists."""
        names = ("MLFLOW_TRACKING_", "PREFECT_API_")
        return {name: value for name, value in self.variables("worker").items() if name.startswith(names)}

    def variables(self, service: str) -> dict[str, str]:
        """Return the environment of a service of docker-compose.yml as it is on this machine."""
        given = self._services[service]["environment"].items()
        found = {name: self._here(service, str(value)) for name, value in given}
        if "PGHOST" in found:
            found |= {"PGHOST": HOST, "PGPORT": str(self.ports["postgres"])}
        return found

    def _here(self, service: str, value: str) -> str:
        known = {**self.secrets, **{f"{name.upper()}_PORT": str(port) for name, port in self.ports.items()}}
        value = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: known.get(found[1], found[2]), value)
        value = re.sub(r"\$\{(\w+):[^}]*\}", lambda found: known[found[1]], value)
        value = re.sub(rf"\b({'|'.join(PORTS)}):\d+", lambda found: f"{HOST}:{self.ports[found[1]]}", value)
        value = value.replace("/project", str(self.repository)) if value.startswith("/project") else value
        return f"{self.folder / service}{value}" if value.startswith(_FOLDERS) else value

    def pid(self, name: str) -> int | None:
        """Return the id of a running server's process, which leads its group."""
        process = self._processes.get(name)
        return process.pid if process and process.poll() is None else None

    def log(self, name: str) -> str:
        """Return what a server has printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def start(self, *names: str) -> None:
        """Start servers that are not running, wait until they are ready, and provision them as Compose does."""
        for row in ROWS:
            started = [name for name in row if name in names and self.pid(name) is None]
            for name in started:
                self._launch(name)
            for name in started:
                self._finish(name)

    def _finish(self, name: str) -> None:
        try:
            wait_for(lambda: self._is_ready(name), 300, name)
        except AssertionError as error:
            raise AssertionError(f"{name} is not ready; the end of its log:\n{self.log(name)[-3000:]}") from error
        if name in STEPS:
            variables = self.variables("storage") | self.variables("accounts") | self.secrets
            provision.STEPS[STEPS[name]](variables)

    def _launch(self, name: str) -> None:
        folder = self.folder / name
        folder.mkdir(mode=0o711, exist_ok=True)
        environment, cwd = own_environment(), folder
        if name == "postgres":
            command, cwd = _postgres(folder, self.ports[name], self.secrets["POSTGRES_PASSWORD"]), Path("/")
        elif name == "s3":
            command = [sys.executable, "-m", "moto.server", "--host", HOST, "--port", str(self.ports[name])]
        else:
            here = {"0.0.0.0": HOST, str(PORTS[name]): str(self.ports[name]), "/run/secrets/SERVE_KEYS": str(self.keys)}
            command = [here.get(word, word) for word in self._command(name)]
            environment |= self.variables(name)
            for prefix in _FOLDERS:
                (folder / prefix[1:]).mkdir(exist_ok=True)
        if name == "mlflow":
            plugin = [str(ROOT / "stack" / "mlflow_plugin"), os.environ.get("PYTHONPATH", "")]
            environment |= {
                "MLFLOW_AUTH_CONFIG_PATH": str(ROOT / "mlflow" / "basic_auth.ini"),
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                "PYTHONPATH": os.pathsep.join(filter(None, plugin)),
            }
        elif name == "worker":
            (folder / "work" / "tmp").mkdir(exist_ok=True)
            cwd = folder / "work"
            environment |= {
                "PREFECT_WORKER_WEBSERVER_HOST": HOST,
                "PREFECT_WORKER_WEBSERVER_PORT": str(self.ports[name]),
                "PREFECT_WORKER_QUERY_SECONDS": "2",
            }
        with (self.folder / f"{name}.log").open("a") as log:
            self._processes[name] = subprocess.Popen(
                command, env=environment, cwd=cwd, stdin=-3, stdout=log, stderr=log, start_new_session=True
            )

    def _command(self, name: str) -> list[str]:
        if "command" in self._services[name]:
            return self._services[name]["command"]
        image = (ROOT / "mlflow" / "Dockerfile").read_text().replace("\\\n", "")
        return json.loads(image.rpartition("CMD ")[2])

    def _is_ready(self, name: str) -> bool:
        assert self.pid(name), f"{name} has ended"
        try:
            if name == "postgres":  # after a crash it listens before it has recovered
                psycopg2.connect(**self.database("postgres")).close()
                return True
            return requests.get(f"{self.address(name)}/{_HEALTH[name]}", timeout=5).ok
        except (psycopg2.OperationalError, requests.RequestException):
            return False

    def stop(self, name: str, sent: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to a server's process group, wait for its end, and kill what it has started elsewhere."""
        pid = self.pid(name)
        if pid is None:
            return
        family = psutil.Process(pid).children(recursive=True)
        # PostgreSQL waits for its clients after SIGTERM.
        os.killpg(pid, signal.SIGINT if (name, sent) == ("postgres", signal.SIGTERM) else sent)
        _, alive = psutil.wait_procs([psutil.Process(pid), *family], timeout=20)
        for process in alive:
            if process.is_running():
                process.kill()
        self._processes[name].wait()

    def stop_all(self) -> None:
        """End all servers, the last started first."""
        for row in reversed(ROWS):
            for name in row:
                self.stop(name, signal.SIGTERM if name == "postgres" else signal.SIGKILL)


def _postgres(folder: Path, port: int, password: str) -> list[str]:
    """Return the command of the server; its data folder is made at the first start. Root is not allowed to run it."""
    programs, is_root = Path(require("PostgreSQL")), os.geteuid() == 0
    switch = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--"] if is_root else []
    data, words = folder / "data", folder / "password"
    if not data.exists():
        data.mkdir(mode=0o700)
        words.write_text(password)
        for path in (data, words) if is_root else ():
            shutil.chown(path, "postgres", "postgres")
        options = ["--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]
        command = [str(programs / "initdb"), f"--pgdata={data}", f"--pwfile={words}", *options]
        subprocess.run([*switch, *command], cwd="/", check=True, capture_output=True)
        words.unlink()
    settings = {"listen_addresses": HOST, "port": port, "unix_socket_directories": ""}
    chosen = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return [*switch, str(programs / "postgres"), "-D", str(data), *chosen]


@contextmanager
def running(*names: str) -> Iterator[Servers]:
    """Start servers in a folder that the user postgres can reach, and stop all of them at the end."""
    folder = Path(tempfile.mkdtemp(prefix="convrec-servers-"))
    folder.chmod(0o711)
    servers = Servers(folder)
    try:
        servers.start(*names)
        yield servers
    finally:
        servers.stop_all()
        shutil.rmtree(folder)


def query(servers: Servers, database: str, statement: str, *values: object) -> list[tuple]:
    """Return the rows of a query of PostgreSQL's superuser."""
    with closing(psycopg2.connect(**servers.database(database))) as connection, connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall()
