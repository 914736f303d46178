"""`convrec results --published`: the last evaluation beside the published figures, as a table and as Markdown."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from rich.console import Console

from convrec.data.catalog import Catalog
from convrec.data.conversations import read_prompts
from convrec.evaluation.comparison import mean_intervals
from convrec.evaluation.headline import spread
from convrec.evaluation.published import PUBLISHED, published_scores
from convrec.evaluation.systems import FREE, system_names
from convrec.evaluation.table import read_evaluation
from convrec.project.atomic import write_text
from convrec.project.config.params import Params, parse_params
from convrec.project.config.profiles import compose
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.project.table import TextTable
from convrec.registry.tracking import flatten

_CUTOFF = 20
_METRICS = {f"recall_at_{_CUTOFF}": f"R@{_CUTOFF}", f"ndcg_at_{_CUTOFF}": f"N@{_CUTOFF}"}
_HEADINGS = (
    "system",
    *(f"{name}, {kind}" for kind in ("ours", "theirs", "published") for name in _METRICS.values()),
)
_NAMES = {"grpo": "GRPO", "rank_grpo:log": "Rank-GRPO (log)", "rank_grpo:exp_inf": "Rank-GRPO (exp_inf)"}


def print_published(params: Params, paths: Paths) -> None:
    """Print and write the table: each system by both protocols, and the published figures.

    Raises `InputError` if the profile has no published figures, or its last evaluation is missing or of other cutoffs.
    """
    profile = params.common.profile
    if profile not in PUBLISHED:
        raise InputError(f"common.profile = {profile!r} has no published figures; there are {', '.join(PUBLISHED)}")
    if _CUTOFF not in params.common.cutoffs:
        raise InputError(f"common.cutoffs = {params.common.cutoffs}: the published figures are at {_CUTOFF}; add it")
    rows = list(_rows(params, paths))
    changes = _changes(params)
    without_intervals = [[cell.partition(" ±")[0] for cell in row] for row in rows]
    headings = [heading.replace(", ", "\n") for heading in _HEADINGS]
    TextTable(headings, without_intervals, f"Reddit-v2, test split, beside {profile}").print()
    console = Console(highlight=False)
    for line in changes:
        console.print(line, soft_wrap=True, markup=False)
    target = paths.comparison / "published.md"
    write_text(target, TextTable(_HEADINGS, rows).markdown() + "\n".join(["", *changes]) + "\n")
    console.print(f"As Markdown: {target}. docs/reproduce.md tells how the protocols differ.", soft_wrap=True)


def _rows(params: Params, paths: Paths) -> Iterator[list[str]]:
    """Yield the cells of each system, then of the published systems that this run does not have."""
    evaluation, figures = read_evaluation(paths), dict(PUBLISHED[params.common.profile])
    test, _ = read_prompts(paths.split("test"), params.evaluate.max_prompts)
    catalog = Catalog.read(paths.catalog)
    ours = {"zero_shot": "zero_shot", "sft": "sft", "rank_grpo": params.rank_grpo.name}
    for system, label in system_names(evaluation).items():
        answers = pd.read_parquet(paths.predictions / f"{system}.parquet")
        texts = dict(zip(answers["prompt_id"], answers["response"], strict=True))
        theirs = published_scores(texts, test, catalog, [_CUTOFF])
        found = mean_intervals(theirs, list(_METRICS), params.evaluate.bootstrap_samples, params.common.seed)
        cells = [_cell(evaluation[system][name], evaluation[system]["intervals"][name]) for name in _METRICS]
        cells += [_cell(found[name].mean, found[name]._asdict()) for name in _METRICS]
        free = system + FREE not in evaluation  # the published lists are free
        figure = figures.pop(ours.get(system.removesuffix(FREE), ""), None) if free else None
        yield [label, *cells, *([f"{value:.4f}" for value in figure] if figure else ["", ""])]
    for name, figure in figures.items():
        yield [_NAMES.get(name, name), "", "", "", "", *(f"{value:.4f}" for value in figure)]


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
