"""The ports and secrets of a native stack: generated at the first start, stored in its folder, private to its user."""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from stack.process import StackError

HOST = "127.0.0.1"
BUCKET = "convrec"
TEAM = "team"  # the user that records runs in MLflow and Prefect
PORTS = {"postgres": 5432, "s3": 9000, "mlflow": 5000, "prefect": 4200, "serve": 8000}
SECRETS = (
    "POSTGRES_PASSWORD",
    "MLFLOW_DB_PASSWORD",
    "PREFECT_DB_PASSWORD",
    "FEEDBACK_DB_PASSWORD",
    "S3_ACCESS_KEY",
    "S3_SECRET_KEY",
    "MLFLOW_ADMIN_PASSWORD",
    "MLFLOW_SECRET_KEY",
    "MLFLOW_TEAM_PASSWORD",
    "PREFECT_PASSWORD",
)


def is_free(port: int) -> bool:
    """Return whether nothing listens on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _any_port(taken: set[int]) -> int:
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port


def check_ports(fixed: Mapping[str, int]) -> None:
    """Raise `StackError` for a port of an unknown server, or a port given to two servers."""
    given = [port for port in fixed.values() if port]
    for name, port in fixed.items():
        if name not in PORTS:
            raise StackError(f"port of {name!r}: no such server; give one of {', '.join(PORTS)}")
        if given.count(port) > 1:
            raise StackError(f"port {port} is given to {name} and another server; give each a different port")


def choose_ports(wanted: Mapping[str, int], fixed: Mapping[str, int]) -> dict[str, int]:
    """Return a free port for each server: the fixed port, else the wanted port if it is free, else any free port.

    Raises `StackError` if a fixed port is taken.
    """
    for name, port in fixed.items():
        if port and not is_free(port):
            raise StackError(f"port {port} for {name} is taken: stop the process that uses it, or give another")
    chosen = {name: port for name, port in fixed.items() if port}
    for name in PORTS:
        if name not in chosen:
            port, taken = wanted[name], set(chosen.values())
            free = port not in taken and is_free(port) and fixed.get(name) != 0
            chosen[name] = port if free else _any_port(taken)
    return {name: chosen[name] for name in PORTS}


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, also while it is written."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)


@dataclass
class Settings:
    """The ports and secrets of the servers of one folder."""

    folder: Path
    ports: dict[str, int]
    secrets: dict[str, str] = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> "Settings":
        """Return the settings stored in the folder, or new ones; nothing is written."""
        path = folder / "servers.json"
        made = {name: token_hex(20) for name in SECRETS}
        if not path.exists():
            return cls(folder, dict(PORTS), made)
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            ports, secrets = dict(kept["ports"]), dict(kept["secrets"])
            fit = all(type(port) is int and 0 <= port <= 65535 for port in ports.values())
            fit = fit and all(isinstance(secret, str) for secret in secrets.values())
        except (ValueError, KeyError, TypeError, RecursionError):
            fit = False
        if not fit:
            raise StackError(
                f"{path} is damaged: restore the one that the servers' data were made with (it contains their "
                "passwords), or remove the whole folder"
            )
        return cls(folder, {**PORTS, **ports}, {**made, **secrets})

    def save(self) -> None:
        """Write the servers' settings (`servers.json`) and the clients' variables (`env`)."""
        values = {"ports": self.ports, "secrets": self.secrets}
        write_private(self.folder / "servers.json", json.dumps(values, indent=2) + "\n")
        lines = [f"{name}={value}\n" for name, value in self.clients().items()]
        write_private(self.folder / "env", "".join(lines))

    def address(self, name: str) -> str:
        """Return the URL of a server."""
        scheme = "postgresql" if name == "postgres" else "http"
        return f"{scheme}://{HOST}:{self.ports[name]}"

    def clients(self) -> dict[str, str]:
        """Return the variables that clients need, without keys of the object store or passwords of databases."""
        return {
            "MLFLOW_TRACKING_URI": self.address("mlflow"),
            "MLFLOW_TRACKING_USERNAME": TEAM,
            "MLFLOW_TRACKING_PASSWORD": self.secrets["MLFLOW_TEAM_PASSWORD"],
            "PREFECT_API_URL": f"{self.address('prefect')}/api",
            "PREFECT_API_AUTH_STRING": f"{TEAM}:{self.secrets['PREFECT_PASSWORD']}",
        }

    def provisioning(self) -> dict[str, str]:
        """Return the variables that `stack.provision` reads."""
        return {
            **self.secrets,
            **self.clients(),
            "PGHOST": HOST,
            "PGPORT": str(self.ports["postgres"]),
            "S3_ENDPOINT": self.address("s3"),
            "S3_BUCKET": BUCKET,
        }
