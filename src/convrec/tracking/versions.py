"""The exact versions that a run used: parameters, graph, lock, and DVC's files of raw data. Does not import mlflow."""

import hashlib
import os
import posixpath
import subprocess
from pathlib import Path
from typing import Any

from convrec.errors import InputError
from convrec.files.yaml import parse_yaml

FOLDER = "versions"  # artifact folder of a run
DIGEST_TAG = "versions.md5"
PARAMS, GRAPH, LOCK = "params.yaml", "dvc.yaml", "dvc.lock"
PREVIOUS = Path("previous")  # `convrec data restore --force` keeps replaced files here
DATA_STAGE = "data"
_HASHES = ("md5", "etag", "checksum")  # DVC's names for the hash of an out, by the kind of storage


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
    """Return the `*.dvc` files outside hidden folders and outside folders with copies of such files."""
    found, copies = [], ("mlruns", PREVIOUS.name)
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not name.startswith(".") and name not in copies]
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
    names = [name for name in (PARAMS, GRAPH, LOCK) if (root / name).is_file()]
    return {name: (root / name).read_bytes() for name in [*names, *_dvc_names(root)]}


def write_versions(files: dict[str, bytes], folder: Path) -> None:
    """Write the files below `folder`, each at its path in the project."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def digest(files: dict[str, bytes]) -> str:
    """Return one MD5 of all names and contents; it is equal for runs of the same versions."""
    total = hashlib.md5(usedforsecurity=False)
    for name in sorted(files):
        total.update(f"{name}\0{hashlib.md5(files[name], usedforsecurity=False).hexdigest()}\n".encode())
    return total.hexdigest()


def parse_mapping(content: bytes) -> dict[str, Any]:
    """Return a YAML 1.2 mapping as DVC reads it; an empty one for any other content."""
    try:
        value = parse_yaml(content, "a file of the versions")
    except InputError:
        return {}
    return value if isinstance(value, dict) else {}


def out_hashes(outs: Any, folder: str = ".") -> dict[str, str]:
    """Return the hash of each path in a list of DVC outs (or deps); the hash of a folder ends in `.dir`."""
    hashes = {}
    for out in outs if isinstance(outs, list) else []:
        value = next((out[key] for key in _HASHES if out.get(key)), None) if isinstance(out, dict) else None
        if value and isinstance(out.get("path"), str):
            hashes[posixpath.normpath(posixpath.join(folder, out["path"]))] = str(value)
    return hashes


def raw_hashes(files: dict[str, bytes]) -> dict[str, str]:
    """Return the hash of each file or folder of raw data that a `*.dvc` file tracks."""
    hashes: dict[str, str] = {}
    for name, content in files.items():
        if name.endswith(".dvc"):
            value = parse_mapping(content)
            folder = posixpath.join(posixpath.dirname(name), str(value.get("wdir", ".")))
            hashes |= out_hashes(value.get("outs"), folder)
    return hashes


def locked_stage(files: dict[str, bytes], stage: str = DATA_STAGE) -> dict[str, Any]:
    """Return a stage's entry in dvc.lock, empty if there is none."""
    stages = parse_mapping(files.get(LOCK, b"")).get("stages")
    value = stages.get(stage) if isinstance(stages, dict) else None
    return value if isinstance(value, dict) else {}


def version_tags(files: dict[str, bytes]) -> dict[str, str]:
    """Return the tag with one MD5 of all files, which tells whether the recorded files are still the same."""
    return {DIGEST_TAG: digest(files)} if files else {}
