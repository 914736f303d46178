"""A project in a folder of its own, for tests that run the real commands."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
FILES = ("dvc.yaml", "params.yaml", "prefect.yaml", "promotion.yaml", "monitoring.yaml", ".dvcignore", ".gitignore")
FILES += ("profiles", "prompts", "src", "flows", "tasks", "data/raw")
NO_BASELINES = {"baselines": {"names": []}}  # in promotion.yaml: a shrunk model is no better than they are
SHRUNK = {
    "common": {"list_length": 6, "cutoffs": [2, 6], "max_completion_length": 32},
    "data": {"synthetic": {"num_conversations": 240}},
    "demonstrations": {"adjust": {"epochs": 3}},
    "base_model": {
        "embedded": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "vocab_size": 1024,
            "catalog_pages": 300,
        }
    },
    "sft": {"num_train_epochs": 2, "save_steps": 2, "validation_prompts": 6},
    "rank_grpo": {
        "max_steps": 4,
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "save_steps": 2,
        "since": None,
    },
}


def _update(target, changes):
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(target[key], dict):
            _update(target[key], value)
        else:
            target[key] = value


def set_params(project: Path, changes: dict, file: str = "params.yaml") -> None:
    """Change values of a YAML file, comments kept."""
    yaml, path = YAML(), project / file
    params = yaml.load(path)
    _update(params, changes)
    yaml.dump(params, path)


def make_project(folder: Path) -> Path:
    """Copy what a clone of the project holds into a folder that is a git repository of its own, nothing committed."""
    for name in (*FILES, ".dvc/config", ".dvc/.gitignore"):
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "demo")  # the packaged model is large
        shutil.copytree(source, target, ignore=ignore) if source.is_dir() else shutil.copy(source, target)
    return make_repository(folder)


def make_stages(folder: Path, changes: dict) -> None:
    """Write what stages that are run by themselves read: the graph and the shrunk parameters, with these changes."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, folder)
    set_params(folder, {**SHRUNK, **changes})


def make_repository(folder: Path) -> Path:
    """Make the folder a git repository in which `commit` can commit."""
    run_in(folder, "git", "init", "--quiet", "--initial-branch", "main")
    run_in(folder, "git", "config", "user.name", "test")
    run_in(folder, "git", "config", "user.email", "test@localhost")
    return folder


def commit(project: Path, message: str) -> None:
    """Commit everything that git does not ignore."""
    run_in(project, "git", "add", "-A")
    run_in(project, "git", "commit", "--quiet", "-m", message)


def own_environment() -> dict[str, str]:
    """Return the environment of the tests without variables of servers and clients, with this Python on PATH."""
    foreign = ("MLFLOW_", "_MLFLOW_", "PREFECT_", "AWS_", "PG", "CONVREC_", "DVC_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept.pop("SHELL", None)  # as for a service: DVC's commands then run in /bin/sh
    return {**kept, "PATH": path, "COLUMNS": "200", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}


def run_in(
    project: Path, *command: str, check: bool = True, timeout: float = 900, **variables: str
) -> subprocess.CompletedProcess:
    environment = own_environment() | variables
    result = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    if check and result.returncode:
        raise AssertionError(
            f"{command} ended with {result.returncode}\n{result.stdout[-6000:]}\n{result.stderr[-6000:]}"
        )
    return result
