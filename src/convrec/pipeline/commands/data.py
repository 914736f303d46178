"""`convrec data` and `convrec fetch-model`: versions and samples of the data, downloads from a hub."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt, UInt32
from cyclopts.validators import Number

from convrec.pipeline.commands import PIPELINE, add_group, app

data = add_group("data", PIPELINE, "Compare versions of the data, write a sample, download datasets.")
Revision = Annotated[str | None, Parameter(help="Commit, tag or branch; default: that of FOLDER.lock.json, or main.")]
Include = Annotated[list[str] | None, Parameter(help="Only files that match this pattern; repeatable.")]


@data.command
def diff(
    old: str,
    new: str = "workspace",
    /,
    *,
    write: Annotated[Path | None, Parameter(name="--json")] = None,
    limit: NonNegativeInt = 20,
) -> None:
    """Show the changes between two versions of the data.

    Example: convrec data diff v1 v2

    Args:
        old: A git revision, a folder as data/processed, a catalog file, or `workspace`.
        new: The same.
        write: Also write all changes to this file, as JSON.
        limit: Names shown per kind of change.
    """
    from convrec.data.revisions.diff import diff as difference
    from convrec.project.atomic import check_target, write_text

    if write is not None:
        check_target(write, "--json")
    found = difference(old, new)
    if write is not None:
        write_text(write, json.dumps(found.to_json(), ensure_ascii=False, indent=1) + "\n")
    print(found.to_text(limit))


@data.command
def sample(
    folder: Path,
    /,
    *,
    until: str = "2022-12",
    conversations: Annotated[int, Parameter(validator=Number(gte=1, lte=1_000_000))] = 14_400,
    seed: UInt32 = 17,
) -> None:
    """Write the embedded world as monthly files in the project's schema.

    Example: convrec data sample my-data --until 2022-11

    Args:
        folder: Where the files go; those that are there already stay as they are.
        until: Last month to write, in 2022.
        conversations: Conversations of the whole year.
        seed: Seed of the simulation.
    """
    from convrec.data.sources.sample import write_sample

    written = write_sample(folder, until, conversations, seed)
    print(f"{folder}: {len(written)} new files: {', '.join(path.name for path in written) or 'none'}")


@data.command(name="fetch")
def fetch_dataset(name: str, /, *, to: Path, revision: Revision = None, include: Include = None) -> None:
    """Download a public dataset from the Hugging Face Hub, with pinned commit and checksums.

    Example: convrec data fetch ZhankuiHe/reddit_movie_large_v1 --to data/raw

    Args:
        name: Name of the repository, for instance ZhankuiHe/reddit_movie_large_v1.
        to: Folder for the files.
    """
    from convrec.generation.fetch import fetch

    print(fetch("dataset", name, to, revision=revision, patterns=include))


@app.command(group=PIPELINE)
def fetch_model(name: str, /, *, to: Path, revision: Revision = None, include: Include = None) -> None:
    """Download a model from the Hugging Face Hub, with pinned commit and checksums.

    Example: convrec fetch-model Qwen/Qwen2.5-0.5B-Instruct --to models/qwen

    Args:
        name: Name of the repository, for instance Qwen/Qwen2.5-0.5B-Instruct.
        to: Folder for the files.
    """
    from convrec.generation.fetch import fetch

    print(fetch("model", name, to, revision=revision, patterns=include))
