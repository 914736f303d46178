"""A project folder from an installed package, which has the files of one beside its modules."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from convrec import __version__
from convrec.project.code import PACKAGE
from convrec.project.errors import InputError
from convrec.project.graph import GRAPH

TEMPLATE = PACKAGE / "template"  # in a wheel (see setup.py)
PINNED = Path("requirements.txt")
_CODE = re.compile(r"(?:^ +- src/convrec/\S+\n)+", re.MULTILINE)


def write_project(dry_run: bool = False) -> str | None:
    """Write a project into the current folder unless there is one, and return what was written.

    In the graph, the installed version in requirements.txt stands for the code: with another one, stages run again.
    Raises `InputError` where a file would be overwritten, the package is a checkout's, or a project would be written in
    a dry run: what follows needs its profiles.
    """
    if GRAPH.exists():
        return None
    if not TEMPLATE.is_dir():
        raise InputError(f"{Path.cwd()}: no project ({GRAPH} is missing); run the command in a clone of the project")
    if dry_run:
        raise InputError(f"--dry-run: {Path.cwd()} has no project yet; without it, `convrec init` writes one")
    files = [path.relative_to(TEMPLATE) for path in TEMPLATE.rglob("*") if path.is_file()]
    if there := [str(path) for path in (*files, PINNED) if path.exists()]:
        raise InputError(f"{Path.cwd()}: {', '.join(there)} would be overwritten; run `convrec init` in a new folder")
    shutil.copytree(TEMPLATE, Path(), dirs_exist_ok=True)
    GRAPH.write_text(_CODE.sub(f"      - {PINNED}\n", GRAPH.read_text(encoding="utf-8")), encoding="utf-8")
    PINNED.write_text(f"convrec=={__version__}\n", encoding="utf-8")
    if subprocess.run(["git", "rev-parse"], capture_output=True, check=False).returncode:
        subprocess.run(["git", "init", "--quiet"], check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet", "--subdir"], check=True)
    return f"a new project: {', '.join(sorted({path.parts[0] for path in files}))}, {PINNED}"
