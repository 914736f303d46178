"""Loads a version of the processed data from a folder, a file, or a git revision of the project."""

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from convrec.data.catalog_files import load_catalog
from convrec.data.conversations import SPLITS
from convrec.data.parquet import parquet_columns, parquet_frame
from convrec.data.quarantine import Quarantine
from convrec.data.revisions.conversation_diff import COMPARED
from convrec.project.errors import InputError
from convrec.project.paths import Paths

WORKSPACE = "workspace"  # the name of the current data in data/processed
CATALOG_COLUMNS = ("item_id", "title", "year", "aliases", "metadata")
_CATALOG = Paths().catalog.name
_FILES = {_CATALOG: "", **{Paths().split(split).name: split for split in SPLITS}}  # compared files, and their splits
_FORMS = (
    f"a folder such as data/processed, a catalog, a Parquet file of conversations, a git revision, or {WORKSPACE!r}"
)


@dataclass(frozen=True)
class Version:
    """A catalog, or None, and the existing splits; `name` is the requested name."""

    name: str
    catalog: pd.DataFrame | None
    splits: dict[str, pd.DataFrame]


def load_version(name: str) -> Version:
    """Return the version with this name: `workspace`, a folder, a file, or else a git revision of this project.

    The data of a revision come from DVC's cache or default remote. Raises `InputError` if nothing of that name exists
    or can be read.
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
    found = [file for file in _FILES if (folder / file).is_file()]
    if not found:
        raise InputError(
            f"{name}: this folder has none of {', '.join(_FILES)}; give one that does, or, for a git revision of "
            f"this name, refs/heads/{name} or refs/tags/{name}"
        )
    catalog: pd.DataFrame | None = None
    splits: dict[str, pd.DataFrame] = {}
    for file in found:
        with _labelled(folder / file, f"{name}: {file}"):
            if file == _CATALOG:
                catalog = _catalog(folder / file)
            else:
                splits[_FILES[file]] = _rows(folder / file)
    return Version(name, catalog, splits)


def _of_file(path: Path, name: str) -> Version:
    with _labelled(path, name):
        if path.suffix.lower() == ".parquet" and {"messages", "groundtruth"} & {*parquet_columns(path)}:
            return Version(name, None, {path.stem if path.stem in SPLITS else "conversations": _rows(path)})
        return Version(name, _catalog(path), {})


@contextmanager
def _labelled(path: Path, label: str) -> Iterator[None]:
    """Replace the path in error messages, which may be temporary, by the requested name."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{label}: {str(error).removeprefix(f'{path}: ')}") from None


def _rows(path: Path) -> pd.DataFrame:
    """Return the conversations with the columns that are compared."""
    return _frame(path, COMPARED, "canonical conversations need")


def _catalog(path: Path) -> pd.DataFrame:
    """Return the canonical catalog table, converted if the file has another form."""
    if path.suffix.lower() == ".parquet":
        columns = {*parquet_columns(path)}
        if columns >= {*CATALOG_COLUMNS} or not columns & {"title", "name"}:
            return _frame(path, CATALOG_COLUMNS, "it has neither conversations nor a catalog, which needs")
    return load_catalog(path, Quarantine()).to_frame()


def _frame(path: Path, needed: Sequence[str], what: str) -> pd.DataFrame:
    """Return these columns, in Arrow's types, which need a fraction of the memory of Python objects."""
    found = parquet_columns(path)
    if missing := [column for column in needed if column not in found]:
        raise InputError(
            f"{path}: column {missing[0]!r} is missing (found {', '.join(found)}); {what} {', '.join(needed)}: make "
            "the file again with `dvc repro data`"
        )
    return parquet_frame(path, needed, types_mapper=pd.ArrowDtype, ignore_metadata=True)


def find_commit(name: str) -> tuple[str, str]:
    """Return the commit of a revision, and the project's path in its repository ("" or a path that ends in /).

    Raises `InputError` if git knows no such revision.
    """
    try:
        prefix, commit = _git("rev-parse", "--show-prefix"), _git("rev-parse", "--verify", f"{name}^{{commit}}")
    except OSError as error:
        raise InputError(f"{name}: no such folder or file, and git cannot be run ({error}); give {_FORMS}") from None
    if prefix is None:
        raise InputError(f"{name}: no such folder or file, and this folder is not in a git repository; give {_FORMS}")
    if commit is None:
        raise InputError(f"{name}: no such folder, file or git revision; give {_FORMS}")
    return commit, prefix


def _git(*arguments: str) -> str | None:
    """Return git's output; None if it fails."""
    result = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return None if result.returncode else result.stdout.rstrip("\n")


def _of_revision(name: str) -> Version:
    """Return the version of a git revision, by way of a temporary folder; the project does not change."""
    from dvc.api import DVCFileSystem  # noqa: PLC0415  (half a second to import; only revisions need it)

    commit, project = find_commit(name)
    processed = f"{project}{Paths().processed.as_posix()}"
    with ExitStack() as stack:
        try:  # `subrepos`, because the project may be a subfolder of the repository
            files = stack.enter_context(closing(DVCFileSystem(".", rev=commit, subrepos=True)))
            has_data = files.isdir(processed)
        except Exception as error:  # a damaged dvc.yaml, lock or configuration can raise anything
            raise InputError(f"{name}: DVC cannot read the project at this revision ({error}); give another") from None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            for path in map(Path, files.ls(processed, detail=False) if has_data else ()):
                if path.name in _FILES:
                    files.get_file(str(path), str(folder / path.name))
        except Exception as error:  # remotes raise errors of their own libraries
            raise InputError(
                f"{name}: {processed} of this revision is neither in DVC's cache nor in the default remote ({error}); "
                f"run `dvc push` where it was made, or make it again: `git checkout {name}`, `dvc repro data`"
            ) from None
        if not any(folder.iterdir()):
            raise InputError(
                f"{name}: this revision has no {processed}; give one whose dvc.lock was committed after "
                "`dvc repro data`"
            )
        return _of_folder(folder, name)
