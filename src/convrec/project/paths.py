"""Paths of every stage's inputs and outputs, relative to the project folder; the same as in dvc.yaml."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from convrec.project.errors import InputError

TRAINED = ("base", "sft", "rank_grpo")  # the models, in the order in which they are made
CONFIGS = Path("configs")  # of launches; part of the code
CHECKPOINTS = Path("checkpoints")  # kept when a stage runs again, by what it is made from (see `fingerprint`)


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


@dataclass(frozen=True)
class Paths:
    """Files below `root`; nothing is created here."""

    root: Path = Path()

    @property
    def processed(self) -> Path:
        return self.root / "data" / "processed"

    @property
    def catalog(self) -> Path:
        return self.processed / "catalog.parquet"

    @property
    def world(self) -> Path:
        """The oracle's lists and the users' tastes; only the embedded world has them."""
        return self.processed / "world.parquet"

    @property
    def exposures(self) -> Path:
        """How often users were shown each item, and accepted it; only with the source `feedback`."""
        return self.processed / "exposures.parquet"

    @property
    def quarantine(self) -> Path:
        return self.processed / "quarantine.parquet"

    @property
    def demonstrations(self) -> Path:
        return self.root / "data" / "demonstrations"

    @property
    def predictions(self) -> Path:
        return self.root / "predictions"

    @property
    def report(self) -> Path:
        return self.root / "reports" / "report.html"

    @property
    def monitoring_report(self) -> Path:
        """The report of `convrec monitor`; outside `reports`, which is an output of the graph."""
        return self.root / "runs" / "monitoring.html"

    @property
    def monitoring_figures(self) -> Path:
        return self.root / "runs" / "monitoring.json"

    @property
    def run_report(self) -> Path:
        """The report of the last pipeline run: `report` with the decision and the times; not part of the graph."""
        return self.root / "runs" / "report.html"

    def results(self, stage: str) -> Path:
        """All that a stage measured; `metrics` has the few values to compare runs by."""
        return self.root / "results" / f"{stage}.json"

    @property
    def calls(self) -> Path:
        """All answered calls to a chat model. They cost money, so DVC and `make clean` do not remove them."""
        return self.root / "cache" / "calls.sqlite"

    @property
    def comparison(self) -> Path:
        """Output of `convrec compare`; not part of the graph."""
        return self.root / "comparison"

    @property
    def ablation(self) -> Path:
        """Output of `convrec ablate-demonstrations`; not part of the graph."""
        return self.root / "comparison" / "ablation.json"

    @property
    def evaluations(self) -> Path:
        """Output of `convrec evaluate --model` and `--checkpoints`; not part of the graph."""
        return self.root / "evaluations"

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
