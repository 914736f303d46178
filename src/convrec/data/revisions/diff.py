"""The difference between two versions of the processed data: folders, files, or git revisions of the project."""

import subprocess
import tempfile
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.catalog_files import load_catalog
from convrec.data.conversations import SPLITS
from convrec.data.parquet import parquet_columns, parquet_frame
from convrec.data.quarantine import Quarantine
from convrec.data.revisions.catalog_diff import CatalogDiff, diff_catalogs
from convrec.data.revisions.conversation_diff import COMPARED, ConversationsDiff, diff_conversations
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.project.text import cut, plain

WORKSPACE = "workspace"  # the name of the current data in data/processed
_CATALOG = Paths().catalog.name
_FILES = {_CATALOG: "", **{Paths().split(split).name: split for split in SPLITS}}  # compared files, and their splits


class Version(NamedTuple):
    """A catalog, or None, and the existing splits."""

    catalog: Catalog | None
    splits: dict[str, pd.DataFrame]


@dataclass(frozen=True)
class DataDiff:
    """The difference between two versions, with their requested names.

    A part that only one version has is None, and listed in `not_compared`.
    """

    old: str
    new: str
    catalog: CatalogDiff | None
    conversations: ConversationsDiff | None
    not_compared: list[str]

    @property
    def is_empty(self) -> bool:
        return all(part is None or part.is_empty for part in (self.catalog, self.conversations))

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON values in a stable order."""
        return asdict(self)

    def to_text(self, limit: int = 20) -> str:
        """Return both parts as text for a terminal of 100 columns, with up to `limit` names of each category."""
        left = [f"Not compared, because only one version has it: {part}" for part in self.not_compared]
        names = cut(plain(f"{self.old} -> {self.new}"))
        if self.is_empty:
            return "\n".join([f"{names}: no change", *left])
        parts = [part.to_text(limit) for part in (self.catalog, self.conversations) if part is not None]
        return "\n".join([names, *parts, *left])


def diff(old: str, new: str) -> DataDiff:
    """Return the difference between two versions (see `load_version` for their names).

    Raises `InputError` if a version cannot be loaded, or if the two have neither catalogs nor conversations in common.
    """
    before, after = load_version(old), load_version(new)
    catalogs = conversations = None
    if before.catalog is not None and after.catalog is not None:
        catalogs = diff_catalogs(before.catalog, after.catalog)
    if before.splits and after.splits:
        conversations = diff_conversations(before.splits, after.splits)
    if catalogs is None and conversations is None:
        raise InputError(
            f"{old}, {new}: one has only a catalog, the other only conversations; give two of the same kind"
        )
    parts = {"catalog": (before.catalog, after.catalog), "conversations": (before.splits, after.splits)}
    alone = [part for part, (one, other) in parts.items() if bool(one) != bool(other)]
    return DataDiff(old, new, catalogs, conversations, alone)


def load_version(name: str) -> Version:
    """Return the version with this name: `workspace`, a folder, a file, or else a git revision of this project.

    The data of a revision come from DVC's cache or default remote. Raises `InputError` if nothing of that name exists
    or can be read.
    """
    path = Paths().processed if name == WORKSPACE else Path(name)
    try:
        if path.is_dir():
            return _of_folder(path)
        if path.is_file():
            return _of_file(path)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    if name == WORKSPACE:
        raise InputError(f"{name}: no {path} here; run `dvc repro data` first, or go to the project's folder")
    return _of_revision(name)


def _of_folder(folder: Path) -> Version:
    found = [file for file in _FILES if (folder / file).is_file()]
    if not found:
        raise InputError(f"this folder has none of {', '.join(_FILES)}; give one that does")
    catalog = load_catalog(folder / _CATALOG, Quarantine()) if _CATALOG in found else None
    return Version(catalog, {_FILES[file]: _rows(folder / file) for file in found if file != _CATALOG})


def _of_file(path: Path) -> Version:
    if path.suffix.lower() == ".parquet" and {"messages", "groundtruth"} & {*parquet_columns(path)}:
        return Version(None, {path.stem if path.stem in SPLITS else "conversations": _rows(path)})
    return Version(load_catalog(path, Quarantine()), {})


def _rows(path: Path) -> pd.DataFrame:
    """Return the columns that are compared, in Arrow's types, which need a fraction of the memory of Python objects."""
    if missing := [column for column in COMPARED if column not in parquet_columns(path)]:
        raise InputError(f"{path}: column {missing[0]!r} is missing; make the file again with `dvc repro data`")
    return parquet_frame(path, COMPARED, types_mapper=pd.ArrowDtype, ignore_metadata=True)


def find_commit(name: str) -> tuple[str, str]:
    """Return the commit of a revision, and the project's path in its repository ("" or a path that ends in /).

    Raises `InputError` if git knows no such revision.
    """
    try:
        commit, prefix = (
            subprocess.run(["git", "rev-parse", *options], capture_output=True, text=True, check=True).stdout.strip()
            for options in (("--verify", f"{name}^{{commit}}"), ("--show-prefix",))
        )
    except (OSError, subprocess.CalledProcessError):
        raise InputError(
            f"{name}: no such folder, file or git revision; give a folder such as data/processed, a catalog, a Parquet "
            f"file of conversations, a revision of this repository, or {WORKSPACE!r}"
        ) from None
    return commit, prefix


def _of_revision(name: str) -> Version:
    """Return the version of a git revision, by way of a temporary folder; the project does not change."""
    from dvc.api import DVCFileSystem  # noqa: PLC0415  (half a second to import; only revisions need it)

    commit, project = find_commit(name)
    processed = f"{project}{Paths().processed.as_posix()}"
    with tempfile.TemporaryDirectory() as folder:
        try:  # `subrepos`, because the project may be a subfolder of the repository
            with closing(DVCFileSystem(".", rev=commit, subrepos=True)) as files:
                for path in map(Path, files.ls(processed, detail=False) if files.isdir(processed) else ()):
                    if path.name in _FILES:
                        files.get_file(str(path), str(Path(folder) / path.name))
        except Exception as error:  # a damaged dvc.yaml, lock or configuration, or a remote, can raise anything
            raise InputError(
                f"{name}: DVC cannot read {processed} of this revision from its cache or default remote ({error}); run "
                f"`dvc push` where it was made, or make it again: `git checkout {name}`, `dvc repro data`"
            ) from None
        if not any(Path(folder).iterdir()):
            raise InputError(
                f"{name}: this revision has no {processed}; give one whose dvc.lock was committed after "
                "`dvc repro data`"
            )
        try:
            return _of_folder(Path(folder))
        except InputError as error:
            raise InputError(f"{name}: {str(error).replace(f'{folder}/', '')}") from None
