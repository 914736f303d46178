"""`convrec results --published`: the last evaluation beside the published figures, as a table and as Markdown."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from convrec.data.catalog import Catalog
from convrec.data.conversations import read_prompts
from convrec.evaluation.comparison import SAMPLES, mean_intervals
from convrec.evaluation.headline import spread
from convrec.evaluation.published import Published, all_published, published_scores
from convrec.evaluation.systems import FREE, system_names
from convrec.evaluation.table import read_evaluation
from convrec.project.atomic import write_text
from convrec.project.config.params import Params, parse_params
from convrec.project.config.profiles import compose
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.project.table import TextTable
from convrec.registry.tracking import flatten

_WIDE = 140  # columns of the table where the output is no terminal
_SHORT = {"recall": "R", "micro_recall": "R", "ndcg": "N", "hit_rate": "HR"}
_ALGORITHMS = {"grpo": "GRPO", "rank_grpo:log": "Rank-GRPO (log)", "rank_grpo:exp_inf": "Rank-GRPO (exp_inf)"}


def print_published(params: Params, paths: Paths) -> None:
    """Print and write the table: each system by this project's and the authors' protocol, and the published figures.

    The authors' protocol is left out where it is the same. Raises `InputError` if the profile or its data have no
    published figures, or the last evaluation is missing or of other cutoffs.
    """
    published = _published(params)
    cutoffs = sorted({int(name.rpartition("_")[2]) for name in published.metrics})
    if missing := [str(cutoff) for cutoff in cutoffs if cutoff not in params.common.cutoffs]:
        raise InputError(
            f"common.cutoffs = {params.common.cutoffs}: the published figures are at {', '.join(missing)}; add it"
        )
    kinds = ("ours", "theirs", "published") if published.own_protocol else ("ours", "published")
    names = [_SHORT[name] + "@" + cutoff for name, _, cutoff in (one.partition("_at_") for one in published.metrics)]
    headings = ("system", *(f"{name}, {kind}" for kind in kinds for name in names))
    rows = list(_rows(published, cutoffs, params, paths))
    notes = _changes(params) if published.own_protocol else [published.note]  # the other profiles are this project's
    without_intervals = [[cell.partition(" ±")[0].partition(" (too few")[0] for cell in row] for row in rows]
    title = f"{published.data}, beside {params.common.profile}"
    TextTable([heading.replace(", ", "\n") for heading in headings], without_intervals, title).print(_WIDE)
    console = Console(highlight=False)
    for line in notes:
        console.print(line, soft_wrap=True, markup=False)
    target = paths.comparison / "published.md"
    write_text(target, TextTable(headings, rows).markdown() + "\n".join(["", *notes]) + "\n")
    console.print(f"As Markdown: {target}. docs/reproduce.md tells how the protocols differ.", soft_wrap=True)


def _published(params: Params) -> Published:
    """Return the published figures for the profile and its catalog's file."""
    profile, file = params.common.profile, Path(params.data.catalog or "").name
    for key, published in all_published().items():
        own, _, name = key.partition("/")
        if own == profile and file.startswith(name):
            return published
    known = ", ".join(all_published())
    data = f" and data.catalog = {params.data.catalog!r}" if file else ""
    raise InputError(f"common.profile = {profile!r}{data} has no published figures; there are {known}")


def _rows(published: Published, cutoffs: list[int], params: Params, paths: Paths) -> Iterator[list[str]]:
    """Yield the cells of each system, then of the published systems that this run does not have."""
    evaluation, figures, metrics = read_evaluation(paths), dict(published.figures), list(published.metrics)
    if published.own_protocol:
        test, _ = read_prompts(paths.split("test"), params.evaluate.max_prompts)
        catalog = Catalog.read(paths.catalog)
    ours = {"zero_shot": "zero-shot", "sft": "SFT", "sasrec": "SASRec"}
    ours["rank_grpo"] = _ALGORITHMS.get(params.rank_grpo.name, "")
    blank = [""] * len(metrics)
    for system, label in system_names(evaluation).items():
        cells = [_cell(evaluation[system][name], evaluation[system]["intervals"][name]) for name in metrics]
        if published.own_protocol:
            answers = pd.read_parquet(paths.predictions / f"{system}.parquet")
            texts = dict(zip(answers["prompt_id"], answers["response"], strict=True))
            theirs = published_scores(texts, test, catalog, cutoffs)
            found = mean_intervals(theirs, metrics, SAMPLES, params.common.seed)
            cells += [_cell(found[name].mean, found[name]._asdict()) for name in metrics]
        own = system
        if published.own_protocol:  # its published lists are free
            own = "" if system + FREE in evaluation else system.removesuffix(FREE)
        figure = figures.pop(ours.get(own, ""), None)
        yield [label, *cells, *([f"{value:.4f}" for value in figure] if figure else blank)]
    for name, figure in figures.items():
        rest = [*blank, *(blank if published.own_protocol else ())]
        yield [name, *rest, *(f"{value:.4f}" for value in figure)]


def _cell(mean: float, interval: dict[str, Any]) -> str:
    return f"{mean:.4f} {spread(interval, digits=4)}"


def _changes(params: Params) -> list[str]:
    """Return a line for each parameter that differs from the profile of the published settings."""
    own = flatten(params.model_dump())
    profile = flatten(parse_params(compose(params.common.profile, []), "profile").model_dump())
    changed = [key for key in profile if own.get(key) != profile[key]]
    if not changed:
        return ["All settings are the published ones."]
    lines = [f"- {key} = {own.get(key)!r}; published settings: {profile[key]!r}" for key in changed]
    return ["Settings that differ from the published ones:", *lines]
