"""PostgreSQL: its programs, its data folder, and the user it runs as."""

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
    """Return the folder with initdb and postgres: the newest of Debian's, else that on PATH, None without either."""
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
    """Return the folder of PostgreSQL's programs; as root on Debian the package is installed where it is missing."""
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
    """Return the command as the user `postgres` runs it where root would: PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return command
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--", *command]


def _give(path: Path) -> None:
    if os.geteuid() == 0:
        shutil.chown(path, "postgres", "postgres")


def prepare(data: Path, password: str) -> None:
    """Make the data folder where there is none yet; whoever connects needs a password, the first user is `postgres`.

    Raises `StackError` where the server's user cannot reach the folder.
    """
    bin_folder = programs()
    if data.exists():
        return
    new = data.with_name("postgres.new")  # so that an interrupted initdb leaves nothing that looks whole
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    _give(new)
    if subprocess.run(as_server(["test", "-w", str(new)]), check=False).returncode:
        raise StackError(
            f"the user postgres cannot reach {data}, and PostgreSQL refuses to be root: run as another user, "
            "name a folder with --folder that others may pass through, or chmod o+x the folders above it"
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
    """Return the command of the server; it listens on 127.0.0.1 only, on no socket file."""
    settings = {"listen_addresses": HOST, "port": port, "unix_socket_directories": "", "max_connections": 100}
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return as_server([str(programs() / "postgres"), "-D", str(data), *options])
