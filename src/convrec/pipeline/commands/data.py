"""`convrec data` and `convrec fetch-model`: versions and samples of the data, downloads from a hub."""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any, Literal

from convrec.pipeline.commands import add_command, whole_number
from convrec.project.atomic import check_target, write_text


def add(groups: Any) -> None:
    """Add `convrec data` and `convrec fetch-model`."""
    text = "compare versions of the data, write a sample, download datasets"
    data = add_command(groups, "data", None, text, "convrec data diff HEAD~1")
    commands = data.add_subparsers(dest="data_command", metavar="SUBCOMMAND", required=True)
    difference = add_command(
        commands, "diff", _diff, "show the changes between two versions of the data", "convrec data diff v1 v2"
    )
    version = "a git revision, a folder as data/processed, a catalog file, or `workspace`"
    difference.add_argument("old", metavar="OLD", help=version)
    difference.add_argument(
        "new", metavar="NEW", nargs="?", default="workspace", help="the same; default: the workspace"
    )
    difference.add_argument("--json", type=Path, metavar="FILE", help="also write all changes as JSON")
    difference.add_argument(
        "--limit", type=whole_number(0), default=20, help="names shown per kind of change, %(type)s"
    )
    text = "write the embedded world as monthly files in the project's schema"
    sample = add_command(commands, "sample", _sample, text, "convrec data sample my-data --until 2022-11")
    sample.add_argument("folder", type=Path, metavar="FOLDER")
    sample.add_argument("--until", default="2022-12", metavar="MONTH", help="last month to write, in 2022")
    sample.add_argument(
        "--conversations",
        type=whole_number(1, 1_000_000),
        default=14_400,
        help="conversations of the whole year, %(type)s",
    )
    sample.add_argument("--seed", type=whole_number(0, 2**31 - 1), default=17, help="%(type)s: %(default)s")
    text = "download a public dataset from the Hugging Face Hub, with pinned commit and checksums"
    example = "convrec data fetch ZhankuiHe/reddit_movie_large_v1 --to data/raw"
    _add_fetch_options(add_command(commands, "fetch", partial(_fetch, "dataset"), text, example))
    text = "download a model from the Hugging Face Hub, with pinned commit and checksums"
    example = "convrec fetch-model Qwen/Qwen2.5-0.5B-Instruct --to models/qwen"
    _add_fetch_options(add_command(groups, "fetch-model", partial(_fetch, "model"), text, example))


def _add_fetch_options(command: argparse.ArgumentParser) -> None:
    name = "name of the repository, for instance ZhankuiHe/reddit_movie_large_v1"
    command.add_argument("name", metavar="NAME", help=name)
    command.add_argument("--to", type=Path, required=True, metavar="FOLDER")
    command.add_argument("--revision", help="commit, tag or branch; default: that of FOLDER.lock.json, or main")
    pattern = "only files that match this pattern; repeatable"
    command.add_argument("--include", action="append", metavar="PATTERN", help=pattern)


def _diff(options: argparse.Namespace) -> None:
    from convrec.data.revisions.diff import diff

    if options.json is not None:
        check_target(options.json, "--json")
    found = diff(options.old, options.new)
    if options.json is not None:
        write_text(options.json, json.dumps(found.to_json(), ensure_ascii=False, indent=1) + "\n")
    print(found.to_text(options.limit))


def _sample(options: argparse.Namespace) -> None:
    from convrec.data.sources.sample import write_sample

    written = write_sample(options.folder, options.until, options.conversations, options.seed)
    print(f"{options.folder}: {len(written)} new files: {', '.join(path.name for path in written) or 'none'}")


def _fetch(kind: Literal["dataset", "model"], options: argparse.Namespace) -> None:
    from convrec.generation.fetch import fetch

    print(fetch(kind, options.name, options.to, revision=options.revision, patterns=options.include))
