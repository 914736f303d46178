"""PostgreSQL: its programs, data folder and system user."""

import os
import shutil
import subprocess
from pathlib import Path

from stack.process import StackError
from stack.settings import HOST, write_private

_DEBIAN = Path("/usr/lib/postgresql")
_MISSING = "PostgreSQL is missing: install it (Debian: apt-get install postgresql), so that initdb is found"
_APT = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]


def _version(folder: Path) -> float:
    try:
        return float(folder.parent.name)
    except ValueError:
        return 0.0


def find() -> Path | None:
    """Return the folder with initdb and postgres: Debian's newest, else that on PATH, else None."""
    found = [path.parent for path in _DEBIAN.glob("*/bin/initdb")]
    if found:
        return max(found, key=_version)
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


def _run_apt(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(command, env=environment, check=False, timeout=900, capture_output=True, text=True)
    except subprocess.TimeoutExpired as error:
        raise StackError(f"{_MISSING} ({' '.join(command)} took more than {error.timeout:.0f} s)") from None
    if done.returncode:
        raise StackError(f"{_MISSING} ({' '.join(command)} failed: {' '.join(done.stderr.split())[-500:]})")


def programs() -> Path:
    """Return the folder of PostgreSQL's programs; root on Debian installs the package if it is missing."""
    found = find()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in ([*_APT, "update"], [*_APT, "install", "--yes", "--no-install-recommends", "postgresql"]):
            _run_apt(command, quiet)
        found = find()
    if found is None:
        raise StackError(_MISSING)
    return found


def as_server(command: list[str]) -> list[str]:
    """Return the command, run as the user `postgres` if this user is root, because PostgreSQL rejects root."""
    if os.geteuid() != 0:
        return command
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--", *command]


def _give(path: Path) -> None:
    if os.geteuid() == 0:
        shutil.chown(path, "postgres", "postgres")


def prepare(data: Path, password: str) -> None:
    """Create the data folder if it does not exist, with the superuser `postgres` and password authentication.

    Raises `StackError` if the server's user cannot access the folder.
    """
    bin_folder = programs()
    if data.exists():
        return
    new = data.with_name("postgres.new")  # renamed at the end, so that an interrupted initdb leaves no partial folder
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    _give(new)
    if subprocess.run(as_server(["test", "-w", str(new)]), check=False).returncode:
        raise StackError(
            f"the user postgres cannot access {data}, and PostgreSQL does not run as root: run as another user, give "
            "another folder with --folder, or chmod o+x the folders above it"
        )
    words = data.with_name("postgres.password")
    write_private(words, password)
    _give(words)
    options = ["--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--data-checksums"]
    command = [str(bin_folder / "initdb"), f"--pgdata={new}", f"--pwfile={words}", "--no-instructions", *options]
    done = subprocess.run(as_server(command), cwd="/", capture_output=True, text=True, check=False)
    words.unlink()
    if done.returncode:
        raise StackError(f"initdb failed: {done.stderr.strip()[-2000:]}")
    new.rename(data)


def command(data: Path, port: int) -> list[str]:
    """Return the command of the server; it listens only on 127.0.0.1, without a socket file."""
    settings = {"listen_addresses": HOST, "port": port, "unix_socket_directories": "", "max_connections": 100}
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return as_server([str(programs() / "postgres"), "-D", str(data), *options])
