"""`convrec data` and `convrec fetch-model`: versions and samples of the data, downloads from a hub."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from convrec.pipeline.commands import PIPELINE, NonNegativeInt, UInt32, Whole, add_group, app

data = add_group("data", PIPELINE, "Compare versions of the data, write a sample, download datasets.")


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
    from convrec.data.revisions import diff as difference
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
    conversations: Annotated[Whole, Parameter(validator=Number(gte=1, lte=1_000_000))] = 14_400,
    seed: UInt32 = 17,
    log: bool = False,
) -> None:
    """Write the embedded world as monthly files in the project's schema, or as a log.

    Example: convrec data sample my-data --until 2022-11

    Args:
        folder: Where the files go; those that are there already stay as they are.
        until: Last month to write, in 2022.
        conversations: Conversations of the whole year.
        seed: Seed of the simulation.
        log: Write what the users liked and disliked as events, in place of the conversations.
    """
    from convrec.data.sources.sample import write_sample

    written = write_sample(folder, until, conversations, seed, log)
    print(f"{folder}: {len(written)} new files: {', '.join(path.name for path in written) or 'none'}")


def _fetch(
    kind: Literal["dataset", "model"],
    name: str,
    /,
    *,
    to: Path,
    revision: str | None = None,
    include: list[str] | None = None,
) -> None:
    """Download files of a repository.

    Args:
        name: Name of the repository.
        to: Folder for the files.
        revision: Commit, tag or branch; default: that of FOLDER.lock.json, or main.
        include: Only files that match this pattern; repeatable.
    """
    from convrec.generation.fetch import fetch

    print(fetch(kind, name, to, revision=revision, patterns=include))


_PINNED = "from the Hugging Face Hub, with pinned commit and checksums.\n\nExample: convrec"
text = f"Download a public dataset {_PINNED} data fetch ZhankuiHe/reddit_movie_large_v1 --to data/raw"
data.command(partial(_fetch, "dataset"), name="fetch", help=text)
text = f"Download a model {_PINNED} fetch-model Qwen/Qwen2.5-0.5B-Instruct --to models/qwen"
app.command(partial(_fetch, "model"), name="fetch-model", group=PIPELINE, help=text)
