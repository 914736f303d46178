"""Paths of every stage's inputs and outputs, relative to the project folder; the same as in dvc.yaml."""

import os
from pathlib import Path, PurePosixPath

from convrec.project.errors import InputError

TRAINED = ("base", "sft", "rank_grpo")  # the models, in the order in which they are made
CONFIGS = Path("configs")  # of launches; part of the code
CHECKPOINTS = Path("checkpoints")  # kept when a stage runs again, by what it is made from (see `project.code`)


def is_below(name: str) -> bool:
    """Return whether a name refers to a file below a folder: it is relative and has no `..`."""
    path = PurePosixPath(name.replace("\\", "/"))
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def inside(folder: Path, name: str, what: str) -> Path:
    """Return the path of a name below a folder, links followed; `what` names it in the `InputError` if it leads out."""
    path = folder / name
    if is_below(name) and path.resolve().is_relative_to(folder.resolve()):
        return path
    raise InputError(f"{what} = {name!r} is outside {folder.absolute()}; name a file below that folder")


def regular(path: Path) -> Path:
    """Return the path of a file to read. Raises `InputError` for a pipe or a device: reading it may never end."""
    if not (path.is_file() or path.is_dir()) and path.exists():  # to read a folder fails by itself
        raise InputError(f"{path}: a pipe or a device; give a regular file")
    return path


def path_of(name: str, what: str) -> Path:
    """Return what a user wrote as a path, whether it exists or not.

    Raises `InputError`, which begins with `what`, if it cannot be looked up: it is too long, or not permitted.
    """
    try:
        os.stat(Path(name, "adapter_config.json"))  # as long as the names that are looked for there
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{what} {name!r:.80}: {reason}; give another path") from None
    return Path(name)


class Paths:
    """Files below `root`; nothing is created here."""

    def __init__(self, root: Path = Path()):
        self.root = root
        self.processed = root / "data" / "processed"
        self.catalog = self.processed / "catalog.parquet"
        self.world = self.processed / "world.parquet"  # the oracle's lists and the users' tastes of the embedded world
        self.quarantine = self.processed / "quarantine.parquet"
        self.demonstrations = root / "data" / "demonstrations"
        self.evidence = root / "models" / "evidence"
        self.guidance = root / "models" / "guidance"
        self.predictions = root / "predictions"
        self.report = root / "reports" / "report.html"
        # No outputs of the graph:
        self.decided_report = root / "runs" / "report.html"  # the report of the last run, with its decision
        self.monitoring_report = root / "runs" / "monitoring.html"
        self.monitoring_figures = root / "runs" / "monitoring.json"
        self.comparison = root / "comparison"  # of `convrec compare`
        self.evaluations = root / "evaluations"  # of `convrec evaluate`
        # Answered calls to a chat model cost money, so neither DVC nor `make clean` removes them.
        self.calls = root / "cache" / "calls.sqlite"

    def split(self, name: str) -> Path:
        return self.processed / f"{name}.parquet"

    def require_split(self, name: str) -> None:
        """Raise `InputError` where the split or the catalog is not made yet."""
        for path in (self.split(name), self.catalog):
            if not path.is_file():
                raise InputError(f"{path}: no data yet; run `dvc repro data` first")

    def demonstration(self, split: str) -> Path:
        return self.demonstrations / f"{split}.parquet"

    def model(self, name: str) -> Path:
        return self.root / "models" / name

    def results(self, stage: str) -> Path:
        """All that a stage measured; `metrics` has the few values to compare runs by."""
        return self.root / "results" / f"{stage}.json"

    def metrics(self, stage: str) -> Path:
        return self.root / "metrics" / f"{stage}.json"

    def plot(self, name: str) -> Path:
        return self.root / "plots" / f"{name}.csv"

    def record(self, stage: str) -> Path:
        """What a stage does, and how it ended (see `StageRecord`)."""
        return self.root / "runs" / f"{stage}.json"

    def log(self, stage: str) -> Path:
        """The log of a stage that a flow runs; a stage that a person runs logs to the terminal."""
        return self.root / "runs" / f"{stage}.log"
