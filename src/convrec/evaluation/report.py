"""The report: one self-contained HTML file. Texts of users and models are escaped."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from convrec.evaluation.data_figures import data_figures
from convrec.evaluation.demonstration_figures import DEMONSTRATION_STEPS, EVIDENCE, demonstration_figures
from convrec.evaluation.examples import Example
from convrec.evaluation.headline import Fact, findings, gain_words, headline_facts, p_words, spread
from convrec.evaluation.metrics import METRICS
from convrec.evaluation.page import render_page
from convrec.evaluation.story_figures import story_figures
from convrec.evaluation.system_figures import constrained_figure, hits_figure, slice_figure
from convrec.evaluation.systems import CONSTRAINED, SYSTEMS, settings_words, system_names, system_pair
from convrec.evaluation.training_figures import training_figures

_RUN = Markup("<!-- the summary of the run -->")  # where `add_run` puts it
COMPARED = ("sft", "rank_grpo")  # the systems whose lists are shown side by side
MODELS = ("zero_shot", *COMPARED)
BESIDE_HITS = {name: METRICS[name].label for name in ("mrr", "novelty", "diversity", "popularity_lift", "coverage")}
SLICES = {
    "groundtruth_popularity": "Popularity of the ground truth",
    "conversation_words": "Length of the conversation",
    "mentions": "Titles that the conversation names",
    "month": "Month",
    "new_items": "Ground truth never liked in training",
}


class DataFile(NamedTuple):
    """One version of a data file; `dates` are the first and the last. Files without prompts or dates have None."""

    name: str
    rows: int
    prompts: int | None
    dates: tuple[str, str] | None
    md5: str


class Failures(NamedTuple):
    """The worst rows of Rank-GRPO, the number of rows without a hit, and the number of all rows."""

    examples: Sequence[Example]
    without_hit: int
    rows: int


def constrained_pairs(systems: Mapping[str, str]) -> dict[str, str]:
    """Return the key of the constrained system by that of the free one, for systems that were evaluated both ways."""
    return {key: key + CONSTRAINED for key in systems if key + CONSTRAINED in systems}


def _gains(evaluation: Mapping[str, Any], headline: str, systems: Mapping[str, str]) -> dict[tuple[str, str], Any]:
    """Return the paired differences in the headline metric by the keys of the two systems."""
    gains = {system_pair(key): gain for key, gain in evaluation.get(f"paired_{headline}", {}).items()}
    return {pair: gain for pair, gain in gains.items() if systems.keys() >= set(pair)}


def _paired(gains: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the columns (`ones`) and rows (`others`) of the table of paired differences.

    A system that is compared only with its own free version has no column.
    """
    ones = dict.fromkeys(one for one, other in gains if one != other + CONSTRAINED)
    return {"ones": list(ones), "others": list(dict.fromkeys(other for one, other in gains if one in ones))}


def system_figures(
    evaluation: Mapping[str, Any], ranks: Mapping[str, pd.DataFrame], headline: str
) -> dict[str, Markup]:
    """Return the plots of the test split as HTML by name; systems that were not evaluated are absent."""
    systems = system_names(evaluation)
    compared = {key: systems[key] for key in COMPARED if key in systems}
    figures = {
        "hits": hits_figure({systems[key]: frame for key, frame in ranks.items()}),
    }
    if pairs := constrained_pairs(systems):
        figures["constrained"] = constrained_figure(evaluation, pairs, systems, headline)
    for kind, slices in evaluation.get("slices", {}).items():
        if len(slices) > 1:
            figures[f"slice_{kind}"] = slice_figure(kind, slices, compared, headline)
    return figures


def _lists_per_step(parameters: Mapping[str, Any]) -> int:
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_processes")
    return math.prod(parameters[f"rank_grpo.{name}"] for name in names)


def _models(names: Iterable[str]) -> list[str]:
    """Return the systems that are models, free or constrained; the best of them is printed in bold."""
    return [name for name in names if name.removesuffix(CONSTRAINED) in MODELS]


def best_models(evaluation: Mapping[str, Any], metrics: Sequence[str]) -> dict[str, float]:
    """Return the highest value of each metric among the models."""
    present = [evaluation[name] for name in _models(evaluation)]
    return {metric: max((scores[metric] for scores in present), default=np.inf) for metric in metrics}


@dataclass(frozen=True)
class Findings:
    """The contents of a report.

    - `evaluation`, `demonstrations`, `training` (by stage): the stages' metrics files.
    - `statistics`: that part of the metrics of the stage `data`.
    - `plots`: the stages' curves by name.
    - `ranks`: the share of rows with a hit at each rank, by system.
    - `validated`: the number of rows and of prompts that the checkpoints were validated on.
    - `quarantined`: source, reason and number of the rows that were left out.
    - `exposure`: acceptance of shown items by rank and by item (see `data.exposure`); empty without recorded feedback.
    - `problems`: the number of findings of each check.
    - `parameters`: the parameters, flat.
    - `code`: the state of git, or empty.
    """

    profile: str
    seed: int
    simulated: bool
    list_length: int
    cutoffs: Sequence[int]
    bootstrap_samples: int
    catalog_size: int
    data_files: Sequence[DataFile]
    quarantined: Sequence[tuple[str, str, int]]
    quarantined_share: Mapping[str, float]
    problems: Mapping[str, int]
    statistics: Mapping[str, Any]
    exposure: Mapping[str, Any]
    demonstrations: Mapping[str, Any]
    training: Mapping[str, Mapping[str, Any]]
    evaluation: Mapping[str, Any]
    plots: Mapping[str, pd.DataFrame]
    ranks: Mapping[str, pd.DataFrame]
    validated: tuple[int, int]
    examples: Sequence[Example]
    failures: Failures
    demonstration_examples: Sequence[Example]
    parameters: Mapping[str, Any]
    code: Mapping[str, str]


def render_report(found: Findings) -> str:
    """Return the report as one HTML document."""
    headline = f"ndcg_at_{max(found.cutoffs)}"
    recall = f"recall_at_{max(found.cutoffs)}"
    metrics = [f"{name}_at_{k}" for name in ("recall", "ndcg") for k in found.cutoffs]
    systems = system_names(found.evaluation)
    gains = _gains(found.evaluation, headline, systems)
    start = found.parameters["rank_grpo.start"]
    start = SYSTEMS.get(start, start)
    return render_page(
        "report.html.j2",
        **vars(found),
        run_mark=_RUN,
        systems=systems,
        models=_models(systems),
        compared={key: systems[key] for key in COMPARED},
        constrained=constrained_pairs(systems),
        slices=found.evaluation.get("slices", {}),
        slice_names=SLICES,
        metrics=metrics,
        beside_hits={
            key: name for key, name in BESIDE_HITS.items() if any(key in found.evaluation[s] for s in systems)
        },
        headline=headline,
        facts=headline_facts(found.evaluation, systems, headline),
        words=findings(found.evaluation, systems, headline),
        spread=spread,
        p_words=p_words,
        gain_words=gain_words,
        recall=recall,
        start=start,
        lists_per_step=_lists_per_step(found.parameters),
        step_names=DEMONSTRATION_STEPS,
        evidence_names=EVIDENCE,
        best=best_models(found.evaluation, [*metrics, "in_catalog"]),
        gains=gains,
        paired=_paired(gains),
        baselines={
            key: (own[f"validation_{headline}"], settings_words(own["settings"]))
            for key, own in found.evaluation.get("baselines", {}).items()
        },
        figures={
            **data_figures(found.plots),
            **demonstration_figures(found.plots, found.demonstrations, headline),
            **training_figures(found.plots, found.cutoffs, found.training["rank_grpo"]["chosen_step"], start),
            **system_figures(found.evaluation, found.ranks, headline),
            **story_figures(found.plots, found.evaluation, systems, headline),
        },
    )


def add_run(page: str, facts: Sequence[Fact], tables: Sequence[Any]) -> str:
    """Return the report `page` with the summary of a pipeline run at its top.

    `tables` have a `title`, a `header` and `rows` of texts; the first column names the rows.
    """
    return page.replace(_RUN, render_page("run.html.j2", facts=facts, tables=tables), 1)
