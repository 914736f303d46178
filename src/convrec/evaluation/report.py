"""The report: one self-contained HTML file. Texts of users and models are escaped."""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from convrec.evaluation.comparison import SAMPLES
from convrec.evaluation.figures import (
    DEMONSTRATION_STEPS,
    demonstration_figures,
    system_figures,
    training_figures,
)
from convrec.evaluation.headline import excludes_zero, findings, headline_facts, p_words, spread
from convrec.evaluation.metrics import METRICS
from convrec.evaluation.page import render_page
from convrec.evaluation.slices import KINDS
from convrec.evaluation.systems import SYSTEMS, is_ablation, served_system, settings_words, system_names, system_pair

COMPARED = ("sft", "rank_grpo")  # the systems whose lists are shown side by side
MODELS = ("zero_shot", *COMPARED)
BESIDE_HITS = ("mrr", "novelty", "diversity", "popularity_lift", "coverage", "concentration", "broken_wishes")

_FIXED: dict[str, Any] = {  # what the template takes of other modules
    "samples": SAMPLES,
    "slice_names": {kind: title for kind, (title, _) in KINDS.items()},
    "step_names": DEMONSTRATION_STEPS,
    "excludes_zero": excludes_zero,
    "spread": spread,
    "p_words": p_words,
}


class DataFile(NamedTuple):
    """One version of a data file; `dates` are the first and the last. Files without prompts or dates have None."""

    name: str
    rows: int
    prompts: int | None
    dates: tuple[str, str] | None
    md5: str


def with_decision(page: str, value: str, note: str) -> str:
    """Return the report with the decision on the model, as it is at the end of the run, on the first row."""
    cell = Markup(
        '<div id="decision"><dt>Decision at the end of the run</dt><dd>{}<small>{} '
        "<code>convrec registry list</code> has the present state.</small></dd></div>"
    ).format(value, note)
    return re.sub(r'<div id="decision">.*?</div>', lambda _: cell, page, count=1, flags=re.DOTALL)


def render_report(
    parameters: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    demonstrations: Mapping[str, Any],
    training: Mapping[str, Mapping[str, Any]],
    plots: Mapping[str, pd.DataFrame],
    ranks: Mapping[str, pd.DataFrame],
    **shown: Any,
) -> str:
    """Return the report as one HTML document.

    - `parameters`: the parameters, flat; `evaluation`, `demonstrations`, `training` (by stage): the metrics files.
    - `plots`: the stages' curves by name (`figures.PLOTS`).
    - `ranks`: the share of rows with a hit at each rank, by system.
    - `shown`: what the template takes as it is (see `stages/report.py`): `data`, the metrics file of the stage `data`;
      `data_files`; `quarantined`, source, reason and number of the rows left out; `validated`, the rows and prompts of
      the checkpoints' scores; `without_hit`, the rows without a hit by Rank-GRPO, and all rows; `examples`,
      `failures`, `demonstration_examples`; `code`, git's state.
    """
    cutoffs, start = parameters["common.cutoffs"], parameters["rank_grpo.start"]
    headline, systems = f"ndcg_at_{max(cutoffs)}", system_names(evaluation)
    batch = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_processes")
    return render_page(
        "report.html.j2",
        **_FIXED,
        **_tables(evaluation, systems, [f"{name}_at_{k}" for name in ("recall", "ndcg") for k in cutoffs], headline),
        **shown,
        parameters=parameters,
        evaluation=evaluation,
        demonstrations=demonstrations,
        training=training,
        simulated=parameters["data.source"] in ("synthetic", ["synthetic"]),
        list_length=parameters["common.list_length"],
        headline=headline,
        recall=f"recall_at_{max(cutoffs)}",
        facts=headline_facts(evaluation, systems, headline),
        words=findings(evaluation, systems, headline)[1:],  # a fact says the first
        start=SYSTEMS.get(start, start),
        lists_per_step=math.prod(parameters[f"rank_grpo.{name}"] for name in batch),
        figures={
            **demonstration_figures(plots, demonstrations, headline),
            **training_figures(plots, cutoffs, training["rank_grpo"]["chosen_step"]),
            **system_figures(evaluation, ranks, systems, headline),
        },
    )


def _tables(
    evaluation: Mapping[str, Any], systems: Mapping[str, str], metrics: list[str], headline: str
) -> dict[str, Any]:
    """Return what the template's tables of systems show: which systems, metrics and differences."""
    served = {key: name for key, name in systems.items() if not is_ablation(key)}
    ablations: dict[str, list[str]] = {}
    for key in (key for key in systems if key not in served):
        ablations.setdefault(served_system(key), []).append(key)
    models = [key for key in served if key in MODELS]
    gains = {system_pair(key): gain for key, gain in evaluation[f"paired_{headline}"].items()}
    # a system that is compared only with its own ablations has no column
    between_served = [(one, other) for one, other in gains if other in served]
    return {
        "systems": served,
        "names": systems,
        "models": models,
        "metrics": metrics,
        "best": {
            name: max((evaluation[key][name] for key in models), default=None) for name in [*metrics, "in_catalog"]
        },
        "compared": {key: systems[key] for key in COMPARED},
        "ablations": ablations,
        "slices": evaluation.get("slices", {}),
        "beside_hits": {
            name: METRICS[name].label for name in BESIDE_HITS if any(name in evaluation[key] for key in served)
        },
        "gains": gains,
        "paired": {
            "ones": list(dict.fromkeys(one for one, _ in between_served)),
            "others": list(dict.fromkeys(other for _, other in between_served)),
        },
        "baselines": {
            key: (own[f"validation_{headline}"], settings_words(own["settings"]))
            for key, own in evaluation.get("baselines", {}).items()
        },
    }
