"""Where every stage's inputs and outputs are, relative to the project's folder: the same names as in dvc.yaml."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from convrec.errors import InputError

TRAINED = ("base", "sft", "rank_grpo")  # the models, in the order in which they are made
CONFIGS = Path("configs")  # of launches; part of the code
CHECKPOINTS = Path("checkpoints")  # kept when a stage runs again, by what it is made from (see `fingerprint`)


def is_below(name: str) -> bool:
    """Return whether a name, as it is written, means a file below a folder: neither absolute, nor with `..` in it."""
    path = PurePosixPath(name.replace("\\", "/"))
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def inside(folder: Path, name: str, what: str) -> Path:
    """Return the path of a name below a folder, links followed; `what` names it in the `InputError` if it leads out."""
    path = folder / name
    if is_below(name) and path.resolve().is_relative_to(folder.resolve()):
        return path
    raise InputError(f"{what} = {name!r} leads out of {folder.absolute()}; name a file below that folder")


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
    def calls(self) -> Path:
        """Every answered call to a chat model: paid for, so kept outside what DVC and `make clean` remove."""
        return self.root / "cache" / "calls.sqlite"

    @property
    def vectors(self) -> Path:
        """The items' vectors of sentence-transformers models."""
        return self.root / "cache" / "vectors.sqlite"

    @property
    def comparison(self) -> Path:
        """What `convrec compare` writes; not part of the graph."""
        return self.root / "comparison"

    @property
    def ablation(self) -> Path:
        """What `convrec ablate-demonstrations` writes; not part of the graph."""
        return self.root / "comparison" / "ablation.json"

    @property
    def evaluations(self) -> Path:
        """What `convrec evaluate --model` and `--checkpoints` write; not part of the graph."""
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

    def run_id(self, stage: str) -> Path:
        return self.root / "runs" / f"{stage}.json"
