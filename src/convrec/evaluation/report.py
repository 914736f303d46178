"""The report: one self-contained HTML file. Texts of users and models are escaped."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from convrec.evaluation.examples import Example
from convrec.evaluation.figures import (
    DEMONSTRATION_STEPS,
    data_figures,
    demonstration_figures,
    story_figures,
    system_figures,
    training_figures,
)
from convrec.evaluation.headline import findings, gain_words, headline_facts, p_words, spread
from convrec.evaluation.metrics import METRICS
from convrec.evaluation.page import render_page
from convrec.evaluation.systems import CONSTRAINED, SYSTEMS, settings_words, system_names, system_pair

COMPARED = ("sft", "rank_grpo")  # the systems whose lists are shown side by side
MODELS = ("zero_shot", *COMPARED)
BESIDE_HITS = ("mrr", "novelty", "diversity", "popularity_lift", "coverage")
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


@dataclass(frozen=True)
class Findings:
    """The contents of a report.

    - `parameters`: the parameters, flat; `code`: the state of git, or empty.
    - `data`, `demonstrations`, `training` (by stage), `evaluation`: the stages' metrics files.
    - `quarantined`: source, reason and number of the rows that were left out.
    - `plots`: the stages' curves by name (`figures.PLOTS`).
    - `ranks`: the share of rows with a hit at each rank, by system.
    - `validated`: the number of rows and of prompts that the checkpoints were validated on.
    - `without_hit`: the number of rows without a hit by Rank-GRPO, and of all rows; `failures`: the worst of them.
    """

    parameters: Mapping[str, Any]
    code: Mapping[str, str]
    data: Mapping[str, Any]
    data_files: Sequence[DataFile]
    quarantined: Sequence[tuple[str, str, int]]
    demonstrations: Mapping[str, Any]
    training: Mapping[str, Mapping[str, Any]]
    evaluation: Mapping[str, Any]
    plots: Mapping[str, pd.DataFrame]
    ranks: Mapping[str, pd.DataFrame]
    validated: tuple[int, int]
    examples: Sequence[Example]
    failures: Sequence[Example]
    without_hit: tuple[int, int]
    demonstration_examples: Sequence[Example]


def render_report(found: Findings) -> str:
    """Return the report as one HTML document."""
    evaluation, parameters = found.evaluation, found.parameters
    cutoffs, start = parameters["common.cutoffs"], parameters["rank_grpo.start"]
    headline, recall = f"ndcg_at_{max(cutoffs)}", f"recall_at_{max(cutoffs)}"
    metrics = [f"{name}_at_{k}" for name in ("recall", "ndcg") for k in cutoffs]
    start = SYSTEMS.get(start, start)
    systems = system_names(evaluation)
    models = [key for key in systems if key.removesuffix(CONSTRAINED) in MODELS]
    pairs = {key: key + CONSTRAINED for key in systems if key + CONSTRAINED in systems}
    gains = {system_pair(key): gain for key, gain in evaluation[f"paired_{headline}"].items()}
    # a system that is compared only with its own free version has no column
    ones = dict.fromkeys(one for one, other in gains if one != other + CONSTRAINED)
    batch = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_processes")
    return render_page(
        "report.html.j2",
        **vars(found),
        simulated=parameters["data.source"] in ("synthetic", ["synthetic"]),
        list_length=parameters["common.list_length"],
        systems=systems,
        models=models,
        best={name: max((evaluation[key][name] for key in models), default=None) for name in [*metrics, "in_catalog"]},
        compared={key: systems[key] for key in COMPARED},
        constrained=pairs,
        slices=evaluation.get("slices", {}),
        slice_names=SLICES,
        metrics=metrics,
        beside_hits={
            name: METRICS[name].label for name in BESIDE_HITS if any(name in evaluation[key] for key in systems)
        },
        headline=headline,
        recall=recall,
        facts=headline_facts(evaluation, systems, headline),
        words=findings(evaluation, systems, headline),
        spread=spread,
        p_words=p_words,
        gain_words=gain_words,
        start=start,
        lists_per_step=math.prod(parameters[f"rank_grpo.{name}"] for name in batch),
        step_names=DEMONSTRATION_STEPS,
        evidence_names={key: SYSTEMS[key] for key in ("popularity", "neighbours", "item_knn")},
        gains=gains,
        paired={"ones": list(ones), "others": list(dict.fromkeys(other for one, other in gains if one in ones))},
        baselines={
            key: (own[f"validation_{headline}"], settings_words(own["settings"]))
            for key, own in evaluation.get("baselines", {}).items()
        },
        figures={
            **data_figures(found.plots),
            **demonstration_figures(found.plots, found.demonstrations, headline),
            **training_figures(found.plots, cutoffs, found.training["rank_grpo"]["chosen_step"], start),
            **system_figures(evaluation, found.ranks, systems, headline),
            **story_figures(found.plots, evaluation, systems, headline),
        },
    )
