"""How each server is started and checked. Secrets are passed in the environment, which only its user can read."""

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg2
import requests

from stack import object_store, postgres
from stack.settings import BUCKET, HOST, Settings

_ROOT = Path(__file__).parent.parent
_AUTH = _ROOT / "mlflow" / "basic_auth.ini"
_MLFLOW_PLUGIN = Path(__file__).parent / "mlflow_plugin"
_CLIENTS = ("MLFLOW_", "_MLFLOW_", "PREFECT_")
_FOREIGN = (*_CLIENTS, "AWS_", "PG", "RCLONE_")


@dataclass(frozen=True)
class Launch:
    """A command with its environment and working folder."""

    command: list[str]
    environment: dict[str, str]
    cwd: Path


def surroundings(foreign: tuple[str, ...] = _FOREIGN) -> dict[str, str]:
    """Return this process's environment without variables that configure the servers, and with this Python on PATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**kept, "PATH": path, "PYTHONUNBUFFERED": "1", "DO_NOT_TRACK": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}


def _has_database(settings: Settings, _since: float) -> bool:
    """Return whether PostgreSQL accepts connections; after a crash it listens before recovery is complete."""
    words = settings.secrets["POSTGRES_PASSWORD"]
    try:
        psycopg2.connect(host=HOST, port=settings.ports["postgres"], user="postgres", password=words).close()
    except psycopg2.OperationalError:
        return False
    return True


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.RequestException:
        return False


def _postgres(settings: Settings) -> Launch:
    data = settings.folder / "postgres"
    postgres.prepare(data, settings.secrets["POSTGRES_PASSWORD"])
    return Launch(postgres.command(data, settings.ports["postgres"]), surroundings(), Path("/"))


def _s3(settings: Settings) -> Launch:
    data = settings.folder / "s3"
    data.mkdir(mode=0o700, exist_ok=True)
    pair = f"{settings.secrets['S3_ACCESS_KEY']},{settings.secrets['S3_SECRET_KEY']}"
    command = [object_store.rclone(), "serve", "s3", str(data), "--addr", f"{HOST}:{settings.ports['s3']}"]
    command += ["--config", "", "--vfs-cache-mode", "off"]
    return Launch(command, {**surroundings(), "RCLONE_AUTH_KEY": f'"{pair}"'}, settings.folder)


def _mlflow(settings: Settings) -> Launch:
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth", "--workers", "1"]
    command += ["--host", HOST, "--port", str(settings.ports["mlflow"])]
    command += ["--backend-store-uri", "postgresql:///mlflow", "--artifacts-destination", f"s3://{BUCKET}/mlflow"]
    environment = {
        **surroundings(),
        "PGHOST": HOST,
        "PGPORT": str(settings.ports["postgres"]),
        "PGUSER": "mlflow",
        "PGPASSWORD": settings.secrets["MLFLOW_DB_PASSWORD"],
        "AWS_ACCESS_KEY_ID": settings.secrets["S3_ACCESS_KEY"],
        "AWS_SECRET_ACCESS_KEY": settings.secrets["S3_SECRET_KEY"],
        "AWS_DEFAULT_REGION": "us-east-1",
        "MLFLOW_S3_ENDPOINT_URL": settings.address("s3"),
        "MLFLOW_AUTH_CONFIG_PATH": str(_AUTH),
        "MLFLOW_AUTH_ADMIN_PASSWORD": settings.secrets["MLFLOW_ADMIN_PASSWORD"],
        "MLFLOW_FLASK_SERVER_SECRET_KEY": settings.secrets["MLFLOW_SECRET_KEY"],
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_MLFLOW_PLUGIN), os.environ.get("PYTHONPATH")))),
    }
    return Launch(command, environment, settings.folder)


def _prefect(settings: Settings) -> Launch:
    home, address = settings.folder / "prefect", settings.address("prefect")
    home.mkdir(mode=0o700, exist_ok=True)
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST]
    command += ["--port", str(settings.ports["prefect"])]
    auth = settings.clients()["PREFECT_API_AUTH_STRING"]
    environment = {
        **surroundings(),
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_MEMO_STORE_PATH": str(home / "memo_store.toml"),
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home / "ui"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": (
            f"postgresql+asyncpg://prefect@{HOST}:{settings.ports['postgres']}/prefect"
        ),
        "PGPASSWORD": settings.secrets["PREFECT_DB_PASSWORD"],
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_API_AUTH_STRING": auth,
        "PREFECT_API_URL": f"{address}/api",
        # With the default, in memory, a restarted server would forget who holds the GPU.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }
    return Launch(command, environment, home)


def _worker(pool: str) -> Callable[[Settings], Launch]:
    def launch(settings: Settings) -> Launch:
        work, home = settings.folder / "work", settings.folder / f"worker-{pool}"
        for folder in (work, home):
            folder.mkdir(mode=0o700, exist_ok=True)
        command = [sys.executable, "-m", "prefect", "worker", "start", "--type", "process", "--pool", pool]
        environment = {
            **surroundings(_CLIENTS),  # a DVC remote may need AWS keys
            **settings.clients(),
            "PREFECT_HOME": str(home),
            "CONVREC_WORKSPACES": str(work),
            "CONVREC_REPOSITORY": os.environ.get("CONVREC_REPOSITORY", str(_ROOT)),
            "PREFECT_WORKER_QUERY_SECONDS": "5",
        }
        return Launch([*command, "--name", f"native-{pool}"], environment, work)

    return launch


def _serve(settings: Settings) -> Launch:
    folder = settings.folder / "serve"  # of the journals
    folder.mkdir(mode=0o700, exist_ok=True)
    command = [sys.executable, "-m", "convrec.cli", "serve", "--host", HOST, "--port", str(settings.ports["serve"])]
    environment = {
        **surroundings(),
        **settings.clients(),
        "CONVREC_FEEDBACK_URL": f"postgresql://feedback@{HOST}:{settings.ports['postgres']}/feedback",
        "PGPASSWORD": settings.secrets["FEEDBACK_DB_PASSWORD"],
    }
    return Launch(command, environment, folder)


@dataclass(frozen=True)
class Service:
    """One server: its launch, its readiness check, and the steps of `stack.provision` that follow."""

    launch: Callable[[Settings], Launch]
    ready: Callable[[Settings, float], bool]  # the second argument is the start time of its process
    steps: tuple[str, ...] = ()
    seconds: float = 120  # timeout until it is ready


# In start order.
SERVICES = {
    "postgres": Service(_postgres, _has_database, ("databases",)),
    "s3": Service(_s3, lambda settings, _: _listens(settings.ports["s3"]), ("bucket",)),
    "mlflow": Service(_mlflow, lambda settings, _: _answers(f"{settings.address('mlflow')}/health"), ("team",)),
    "prefect": Service(_prefect, lambda settings, _: _answers(f"{settings.address('prefect')}/api/health"), ("pools",)),
    "worker-cpu": Service(_worker("cpu"), lambda settings, since: _is_online(settings, "cpu", since)),
    "worker-gpu": Service(_worker("gpu"), lambda settings, since: _is_online(settings, "gpu", since)),
    "serve": Service(_serve, lambda settings, _: _answers(f"{settings.address('serve')}/health")),
}
# The services of a row start together when those of the rows before are ready and provisioned.
ROWS = (("postgres", "s3"), ("mlflow", "prefect"), ("worker-cpu", "worker-gpu", "serve"))


def _is_online(settings: Settings, pool: str, since: float) -> bool:
    """Return whether the worker has sent a heartbeat to the server since `since` (seconds since the epoch)."""
    variables = settings.clients()
    user, _, password = variables["PREFECT_API_AUTH_STRING"].partition(":")
    wanted = {"workers": {"last_heartbeat_time": {"after_": datetime.fromtimestamp(since, UTC).isoformat()}}}
    url = f"{variables['PREFECT_API_URL']}/work_pools/{pool}/workers/filter"
    try:
        answer = requests.post(url, json=wanted, auth=(user, password), timeout=5)
    except requests.RequestException:
        return False
    return answer.ok and f"native-{pool}" in [worker["name"] for worker in answer.json()]
