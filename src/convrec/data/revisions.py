"""The difference between two versions of the processed data: folders, catalog files, or git revisions."""

import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import polars as pl

from convrec.data.catalog import Catalog, Item
from convrec.data.catalog_files import load_catalog
from convrec.data.conversations import SPLITS
from convrec.data.parquet import parquet_frame
from convrec.data.quarantine import Quarantine
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.project.text import hung, listing, plain

WORKSPACE = "workspace"  # the name of the current data in data/processed
# The content that identifies a row; ids are left out, because they can change without the content.
_CONTENT = ("messages", "groundtruth", "seen_titles", "date")


class Version(NamedTuple):
    """A catalog, and the splits that exist, as their rows' contents."""

    catalog: Catalog
    splits: dict[str, pd.DataFrame]


@dataclass(frozen=True)
class DataDiff:
    """The difference between two versions, with their requested names.

    `catalog` has the number of items `before` and `after`, and a list of texts of those `added`, `removed` and
    `changed`. `conversations`, None where a version has none, has the number of rows that are `new`, `gone`, or `moved`
    to another split, and those `before`, `after`, `added` and `removed` of each of the `splits`.
    """

    old: str
    new: str
    catalog: dict[str, Any]
    conversations: dict[str, Any] | None

    @property
    def is_empty(self) -> bool:
        items, rows = self.catalog, self.conversations or {}
        return not any(items[name] for name in _ITEMS) and not any(rows.get(name) for name in _ROWS)

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON values in a stable order."""
        return asdict(self)

    def to_text(self, limit: int = 20) -> str:
        """Return both parts as text for a terminal of 100 columns, with up to `limit` names of each category."""
        items, rows = self.catalog, self.conversations
        lines = hung("", plain(f"{self.old} -> {self.new}{': no change' * self.is_empty}"))
        numbers = ", ".join(f"{len(items[name]):,} {name}" for name in _ITEMS)
        lines.append(f"Catalog: {items['before']:,} -> {items['after']:,} items: {numbers}")
        for name in _ITEMS:
            lines += listing(name, items[name], limit)
        if rows is None:
            return "\n".join([*lines, "Conversations: not compared, because a version has none"])
        lines.append(f"Conversations: {rows['new']:,} new, {rows['gone']:,} gone, {rows['moved']:,} in another split")
        for name, split in rows["splits"].items():
            before, after, added, removed = (f"{number:,}" for number in split.values())
            lines.append(f"  {name:<11}{before} -> {after} rows: {added} added, {removed} removed")
        return "\n".join(lines)


_ITEMS, _ROWS = ("added", "removed", "changed"), ("new", "gone", "moved")


def diff(old: str, new: str) -> DataDiff:
    """Return the difference between two versions (see `load_version` for their names, and for errors)."""
    before, after = load_version(old), load_version(new)
    rows = diff_conversations(before.splits, after.splits) if before.splits and after.splits else None
    return DataDiff(old, new, diff_catalogs(before.catalog, after.catalog), rows)


def diff_catalogs(old: Catalog, new: Catalog) -> dict[str, Any]:
    """Return the difference between two catalogs, of items by id, in the order of the ids (see `DataDiff`)."""
    before, after = ({item.id: item for item in catalog.items} for catalog in (old, new))
    changes = {key: _changes(before[key], after[key]) for key in sorted(before.keys() & after.keys())}
    return {
        "before": len(before),
        "after": len(after),
        "added": [str(after[key]) for key in sorted(after.keys() - before.keys())],
        "removed": [str(before[key]) for key in sorted(before.keys() - after.keys())],
        "changed": [f"{before[key]}: {'; '.join(parts)}" for key, parts in changes.items() if parts],
    }


def _changes(old: Item, new: Item) -> list[str]:
    """Return what changed of an item: `field "old" -> "new"`."""
    one, other = (
        {"title": str(item), **item.metadata, "aliases": ", ".join(sorted(item.aliases))} for item in (old, new)
    )
    names = [name for name in {**one, **other} if (one.get(name) or "") != (other.get(name) or "")]
    return [f'{name} "{one.get(name) or ""}" -> "{other.get(name) or ""}"' for name in names]


def diff_conversations(old: Mapping[str, pd.DataFrame], new: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Return the difference between two versions of the splits (see `DataDiff`); a missing split counts as empty.

    A row is identified by messages, ground truth, seen titles and date; repeated rows are counted each time.
    """
    names = [name for name in SPLITS if name in old or name in new]
    before, after = ({name: _digests(splits.get(name)) for name in names} for splits in (old, new))
    splits = {
        name: {
            "before": before[name].total(),
            "after": after[name].total(),
            "added": (after[name] - before[name]).total(),
            "removed": (before[name] - after[name]).total(),
        }
        for name in names
    }
    every, later = (sum(version.values(), Counter[int]()) for version in (before, after))
    gone = (every - later).total()
    moved = sum(split["removed"] for split in splits.values()) - gone
    return {"new": (later - every).total(), "gone": gone, "moved": moved, "splits": splits}


def _digests(rows: pd.DataFrame | None) -> Counter[int]:
    """Return how often each content stands in the rows, by a hash of 64 bits."""
    if rows is None:
        return Counter()
    texts = pl.from_pandas(rows).select(pl.struct(_CONTENT).struct.json_encode()).to_series()
    return Counter(texts.hash().to_list())


def load_version(name: str) -> Version:
    """Return the version with this name: `workspace`, a folder, a catalog file, or a git revision of this project.

    The data of a revision come from DVC's cache or default remote. Raises `InputError` if nothing of that name exists
    or can be read.
    """
    path = Paths().processed if name == WORKSPACE else Path(name)
    try:
        if path.is_dir():
            return _of_folder(path)
        if path.is_file():
            return Version(load_catalog(path, Quarantine()), {})
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    if name == WORKSPACE:
        raise InputError(f"{name}: no {path} here; run `dvc repro data` first, or go to the project's folder")
    return _of_revision(name)


def _of_folder(folder: Path) -> Version:
    """Return the version of a folder; rows in Arrow's types, which need a fraction of the memory of Python objects."""
    catalog = load_catalog(folder / Paths().catalog.name, Quarantine())
    files = {split: folder / Paths().split(split).name for split in SPLITS}
    return Version(
        catalog,
        {
            split: parquet_frame(path, _CONTENT, types_mapper=pd.ArrowDtype, ignore_metadata=True)
            for split, path in files.items()
            if path.is_file()
        },
    )


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
            f"{name}: no such folder, file or git revision; give a folder such as data/processed, a catalog, "
            f"a revision of this repository, or {WORKSPACE!r}"
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
                wanted = {Paths().catalog.name, *(Paths().split(split).name for split in SPLITS)}
                for path in map(Path, files.ls(processed, detail=False)):
                    if path.name in wanted:
                        files.get_file(str(path), str(Path(folder) / path.name))
            return _of_folder(Path(folder))
        except Exception as error:  # a damaged dvc.yaml, lock or configuration, or a remote, can raise anything
            raise InputError(
                f"{name}: DVC cannot read {processed} of this revision from its cache or default remote "
                f"({str(error).replace(f'{folder}/', '')}); run `dvc push` where it was made, or make it again: "
                f"`git checkout {name}`, `dvc repro data`"
            ) from None
