"""`convrec workspace`: a separate clone for a run."""

import argparse
import os
from pathlib import Path
from typing import Any

from convrec.commands import add_command
from convrec.errors import InputError
from convrec.workspaces import BRANCH_VARIABLE, FOLDER_VARIABLE, REPOSITORY_VARIABLE, prepare_workspace


def add(commands: Any) -> None:
    """Add the command's options."""
    text = "create or update a separate clone of the project for runs, and print its path"
    command = add_command(commands, "workspace", _workspace, text, "convrec workspace train")
    command.add_argument("name", metavar="NAME")
    command.add_argument("--folder", metavar="FOLDER", help=f"folder of all workspaces; default: {FOLDER_VARIABLE}")
    command.add_argument("--repository", metavar="URL", help=f"git URL or path; default: {REPOSITORY_VARIABLE}")
    command.add_argument("--branch", help=f"default: {BRANCH_VARIABLE}, or the repository's default branch")


def _workspace(options: argparse.Namespace) -> None:
    """Print the path of the workspace, and nothing else."""
    folder = options.folder or os.environ.get(FOLDER_VARIABLE, "")
    repository = options.repository or os.environ.get(REPOSITORY_VARIABLE, "")
    named = (("folder", FOLDER_VARIABLE, folder), ("repository", REPOSITORY_VARIABLE, repository))
    missing = [f"--{name}, or set {variable}" for name, variable, value in named if not value]
    if missing:
        raise InputError(f"give {'; and '.join(missing)} (where a worker runs this: in the worker's environment)")
    branch = options.branch or os.environ.get(BRANCH_VARIABLE)
    print(prepare_workspace(options.name, Path(folder), repository, branch))
