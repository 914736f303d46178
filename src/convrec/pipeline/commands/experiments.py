"""`convrec init`, `profile`, `reproduce`, `preflight`, `compare`: before and beside the pipeline."""

from math import inf
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from convrec.pipeline.commands import MEASURE, PIPELINE, PositiveInt, Settings, Share, Whole, app, project

Positive = Annotated[float | None, Parameter(validator=Number(gt=0, lt=inf))]


@app.command(group=PIPELINE)
def init(
    folder: Path,
    /,
    *,
    items: str | None = None,
    catalog: str | None = None,
    conversations: str | None = None,
    log: str | None = None,
    settings: Settings = None,
    dry_run: bool = False,
) -> None:
    """Look at your own files, and write params.yaml for them (docs/adapting.md).

    An installed package first writes a project into the current folder, if it has none.

    Example: convrec init data/raw/mine --items books --dry-run

    Args:
        folder: The folder with a catalog, and with conversations, a log of ratings or events, or both.
        items: The word for several of your items; default: by the names of files and columns.
        catalog: Name of the catalog, if several files look like one.
        conversations: Name of the conversations; without --log, a log beside them is not read.
        log: Name of the log; without --conversations, conversations beside it are not read.
        dry_run: Print what would be written, and write nothing.
    """
    from convrec.pipeline.new_project import write_project
    from convrec.pipeline.own_data import init as look

    if written := write_project(dry_run):
        print(written)
    named = {"catalog": catalog, "conversations": conversations, "log": log}
    for line in look(folder, named, items, settings or [], dry_run):
        print(line)


@app.command(group=PIPELINE)
def preflight(*, fast: bool = False, memory: Positive = None) -> None:
    """Check what a run needs, and run its most expensive steps on throw-away weights.

    Args:
        fast: Only the checks that take no work.
        memory: Limit of a stage's memory in GiB; default: what is free now.
    """
    from convrec.pipeline.preflight import preflight as check

    check(*project(), fast=fast, memory=memory)


@app.command(group=PIPELINE)
def profile(name: str, /, *, settings: Settings = None) -> None:
    """Write params.yaml from a profile.

    Example: convrec profile redial --set data.path=../redial

    Args:
        name: Name of a file in profiles/, without .yaml.
    """
    from convrec.project.config.profiles import apply_profile

    print(apply_profile(name, settings or []))


@app.command(group=PIPELINE)
def reproduce(
    model: str,
    /,
    *,
    data: Path | None = None,
    teacher: str | None = None,
    scale: Share = 1.0,
    settings: Settings = None,
) -> None:
    """Fetch data and model of the published experiment, and write params.yaml (docs/reproduce.md).

    Example: convrec reproduce qwen2.5-0.5b --scale 0.05

    Args:
        model: qwen2.5-0.5b, llama-3.2-1b or llama-3.2-3b.
        data: Folder of the published splits; default: fetch the raw dump.
        teacher: A chat model; default: item similarity, without calls.
        scale: Share of the prompts and steps.
    """
    from convrec.pipeline.reproduce import reproduce as prepare

    for line in prepare(model, data, teacher, scale, settings or []):
        print(line)


@app.command(group=MEASURE)
def compare(
    *,
    algorithms: str = "rank_grpo:exp_inf,rank_grpo:log,grpo,gspo",
    seeds: Annotated[Whole, Parameter(validator=Number(gte=1, lte=1000))] = 3,
    steps: PositiveInt | None = None,
) -> None:
    """Train several algorithms from the same SFT model with several seeds, and compare them.

    Example: convrec compare --algorithms rank_grpo:exp_inf,grpo --seeds 3 --steps 80

    Args:
        algorithms: Separated by commas: rank_grpo:RETURNS or rank_grpo_public:RETURNS (exp_inf, log, exp:GAMMA), grpo,
            gspo, dr_grpo, dapo; dpo.
        seeds: Number of seeds, from common.seed on.
        steps: Steps of each run; default: rank_grpo.max_steps.
    """
    from convrec.pipeline.comparisons import compare_algorithms

    print(f"As JSON: {compare_algorithms(*project(), algorithms.split(','), seeds, steps)}")
