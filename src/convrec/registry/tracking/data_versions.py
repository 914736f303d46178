"""The exact versions that a run used: parameters, graph, lock, and DVC's files of raw data. Does not import mlflow."""

import hashlib
import os
import posixpath
import subprocess
from pathlib import Path

FOLDER = "versions"  # artifact folder of a run
DIGEST_TAG = "versions.md5"
DATA_STAGE = "data"


def _git_names(root: Path) -> list[str]:
    """Return the `*.dvc` files that are ignored by neither git nor DVC."""

    def names(*arguments: str) -> list[str]:
        command = ["git", "ls-files", "-z", "--cached", "--others", *arguments]
        output = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
        return [os.fsdecode(name) for name in output.split(b"\0") if name]

    found = names("--exclude-standard", "--", "*.dvc")
    if not found:
        return []
    literal = [f":(literal){name}" for name in found]
    return sorted({*found} - {*names("--ignored", "--exclude-per-directory=.dvcignore", "--", *literal)})


def _walked_names(root: Path) -> list[str]:
    """Return the `*.dvc` files outside hidden folders and outside `mlruns`, which has copies of such files."""
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not name.startswith(".") and name != "mlruns"]
        found += [Path(folder, name).relative_to(root).as_posix() for name in names if name.endswith(".dvc")]
    return found


def _dvc_names(root: Path) -> list[str]:
    if not (root / ".dvc").is_dir():
        return []
    try:
        found = _git_names(root)
    except (OSError, subprocess.CalledProcessError):  # no git or no repository: DVC works without them
        found = _walked_names(root)
    return sorted(name for name in found if posixpath.basename(name) != ".dvc" and (root / name).is_file())


def read_versions(root: Path = Path()) -> dict[str, bytes]:
    """Return the content of params.yaml, dvc.yaml, dvc.lock and every `*.dvc` file that is not ignored.

    Missing files are left out. Without a DVC repository, `*.dvc` files are left out too.
    """
    names = [name for name in ("params.yaml", "dvc.yaml", "dvc.lock") if (root / name).is_file()]
    return {name: (root / name).read_bytes() for name in [*names, *_dvc_names(root)]}


def digest(files: dict[str, bytes]) -> str:
    """Return one MD5 of all names and contents; it is equal for runs of the same versions."""
    total = hashlib.md5(usedforsecurity=False)
    for name in sorted(files):
        total.update(f"{name}\0{hashlib.md5(files[name], usedforsecurity=False).hexdigest()}\n".encode())
    return total.hexdigest()


def version_tags(files: dict[str, bytes]) -> dict[str, str]:
    """Return the tag with one MD5 of all files, which tells whether the recorded files are still the same."""
    return {DIGEST_TAG: digest(files)} if files else {}
