"""A version of the processed data, by the name of a folder, a file, or a git revision of the project."""

import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from convrec.data.catalog_files import load_catalog
from convrec.data.conversations import SPLITS
from convrec.data.parquet import parquet_columns, parquet_frame
from convrec.data.quarantine import Quarantine
from convrec.errors import InputError
from convrec.paths import Paths
from convrec.versions.conversation_diff import COMPARED

WORKSPACE = "workspace"  # the name of what lies in data/processed now
CATALOG_COLUMNS = ("item_id", "title", "year", "aliases", "metadata")
_FORMS = (
    f"a folder such as data/processed, a catalog, a Parquet file of conversations, a git revision, or {WORKSPACE!r}"
)


@dataclass(frozen=True)
class Version:
    """A catalog, or None, and the splits that there are; `name` is what it was asked for by."""

    name: str
    catalog: pd.DataFrame | None
    splits: dict[str, pd.DataFrame]


def load_version(name: str) -> Version:
    """Return what a name means: `workspace`, a folder, a file, or else a git revision of the project in this folder.

    A revision's data comes from DVC's cache or default remote. Raises `InputError` where nothing of that name is found
    or it cannot be read.
    """
    path = Paths().processed if name == WORKSPACE else Path(name)
    if path.is_dir():
        return _of_folder(path, name)
    if path.is_file():
        return _of_file(path, name)
    if name == WORKSPACE:
        raise InputError(f"{name}: no {path} here; run `dvc repro data` first, or go to the project's folder")
    return _of_revision(name)


def _of_folder(folder: Path, name: str) -> Version:
    paths = {file: folder / file for file in _files() if (folder / file).is_file()}
    if not paths:
        raise InputError(
            f"{name}: this folder holds none of {', '.join(_files())}; name one that does, or for a git revision of "
            f"this name refs/heads/{name} or refs/tags/{name}"
        )
    catalog = paths.get(Paths().catalog.name)
    splits = {split: Paths().split(split).name for split in SPLITS}
    return Version(
        name,
        None if catalog is None else _catalog(catalog, f"{name}: {catalog.name}"),
        {split: _rows(paths[file], f"{name}: {file}") for split, file in splits.items() if file in paths},
    )


def _of_file(path: Path, name: str) -> Version:
    if path.suffix.lower() == ".parquet":
        columns = _columns(path, name)
        if "messages" in columns or "groundtruth" in columns:
            return Version(name, None, {path.stem if path.stem in SPLITS else "conversations": _rows(path, name)})
    return Version(name, _catalog(path, name), {})


def _files() -> list[str]:
    return [Paths().catalog.name, *(Paths().split(split).name for split in SPLITS)]


def _columns(path: Path, label: str) -> list[str]:
    with _labelled(path, label):
        return parquet_columns(path)


def _frame(path: Path, label: str, columns: Iterable[str]) -> pd.DataFrame:
    with _labelled(path, label):  # Arrow's own types take a fraction of the memory of Python's objects
        return parquet_frame(path, list(columns), types_mapper=pd.ArrowDtype, ignore_metadata=True)


@contextmanager
def _labelled(path: Path, label: str) -> Iterator[None]:
    """Name what was asked for in the place of a path, which may be a temporary one."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{label}: {str(error).removeprefix(f'{path}: ')}") from None


def _rows(path: Path, label: str) -> pd.DataFrame:
    """Return the columns of the conversations that are compared."""
    _require(COMPARED, _columns(path, label), label, "canonical conversations need")
    return _frame(path, label, COMPARED)


def _catalog(path: Path, label: str) -> pd.DataFrame:
    """Return the canonical table as it stands, or the one made of a catalog in any other form."""
    if path.suffix.lower() == ".parquet":
        columns = _columns(path, label)
        if set(columns) >= set(CATALOG_COLUMNS):
            return _frame(path, label, CATALOG_COLUMNS)
        if not {"title", "name"} & set(columns):
            _require(CATALOG_COLUMNS, columns, label, "it holds neither conversations nor a catalog, which needs")
    with _labelled(path, label):
        frame = load_catalog(path, Quarantine()).to_frame()
    _require(CATALOG_COLUMNS, frame.columns, label, "a canonical catalog needs")
    return frame


def _require(needed: Iterable[str], found: Iterable[str], label: str, what: str) -> None:
    found = list(found)
    missing = [column for column in needed if column not in found]
    if missing:
        raise InputError(
            f"{label}: column {missing[0]!r} is missing (found {', '.join(found)}); {what} {', '.join(needed)}: make "
            "the file again with `dvc repro data`"
        )


def _of_revision(name: str) -> Version:
    commit, project = find_commit(name)
    processed = f"{project}{Paths().processed.as_posix()}"
    with tempfile.TemporaryDirectory() as folder:
        _fetch(name, commit, processed, Path(folder))
        if not any(Path(folder).iterdir()):
            raise InputError(
                f"{name}: this revision holds no {processed}; choose one whose dvc.lock was committed after "
                "`dvc repro data`"
            )
        return _of_folder(Path(folder), name)


def find_commit(name: str) -> tuple[str, str]:
    """Return the commit that a name means, and where the project is in its repository ("" or a path that ends in /).

    Raises `InputError` where git knows no such revision.
    """
    try:
        prefix = _git("rev-parse", "--show-prefix")
        commit = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except OSError as error:
        raise InputError(f"{name}: no such folder or file, and git cannot be run ({error}); give {_FORMS}") from None
    if prefix is None:
        raise InputError(
            f"{name}: no such folder or file, and no git revision, for this folder is in no git repository; give "
            f"{_FORMS}"
        )
    if commit is None:
        raise InputError(f"{name}: no such folder, file or git revision; give {_FORMS}")
    return commit, prefix


def _git(*arguments: str) -> str | None:
    """Return what git prints; None where it refuses."""
    result = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return None if result.returncode else result.stdout.rstrip("\n")


def _fetch(name: str, commit: str, processed: str, target: Path) -> None:
    """Copy what a commit holds of the compared files into a folder; nothing in the project changes."""
    from dvc.api import DVCFileSystem  # noqa: PLC0415  (half a second to import; only revisions need it)

    with ExitStack() as stack:
        try:  # with `subrepos`, for the project may be a folder of the repository
            files = stack.enter_context(closing(DVCFileSystem(".", rev=commit, subrepos=True)))
            held = files.isdir(processed)
        except Exception as error:  # whatever a damaged dvc.yaml, lock or configuration raises
            raise InputError(
                f"{name}: DVC cannot read the project as of this revision ({error}); choose another"
            ) from None
        try:
            for path in files.ls(processed, detail=False) if held else ():
                if Path(path).name in _files():
                    files.get_file(path, str(target / Path(path).name))
        except Exception as error:  # remotes raise the errors of their own libraries
            raise InputError(
                f"{name}: {processed} of this revision is neither in DVC's cache nor in the default remote ({error}); "
                f"`dvc push` it where it was made, or make it again: `git checkout {name}`, `dvc repro data`"
            ) from None
