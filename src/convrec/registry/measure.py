"""Measures challenger and champion on the same rows."""

import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from convrec.classical.guidance import Guidance
from convrec.data.catalog import Catalog
from convrec.data.conversations import SPLITS, Row, read_rows
from convrec.evaluation.baselines import kept_baselines
from convrec.evaluation.beyond_accuracy import mentions
from convrec.evaluation.comparison import MIN_PERSONS
from convrec.evaluation.evaluation import Evaluation
from convrec.evaluation.scoring import mean_scores
from convrec.evaluation.slices import slice_rows
from convrec.evaluation.systems import BASELINES
from convrec.project.config.params import Params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.registry.decisions import LATENCY, Comparison, Side, SliceChange
from convrec.registry.policy import POLICY_FILE, Baselines, Policy, resolve_metric
from convrec.registry.tracking import file_md5
from convrec.registry.versions import model_name, require_shared_items
from convrec.service.recommender import Recommender
from convrec.service.translation import ModelFiles

logger = logging.getLogger(__name__)

TIMED_PROMPTS = 30
_PERCENTILE = 0.95


def compare_versions(
    params: Params, paths: Paths, policy: Policy, sides: Sequence[tuple[str, ModelFiles]]
) -> Comparison:
    """Return the comparison of both versions on the current test split and catalog, by row.

    `sides` has number and files of the challenger, then of the champion if there is one. Cached lists are reused. The
    latency is that of single conversations (see `latencies`). Raises `InputError` if the data have not been made yet,
    or a version recommends from another catalog.
    """
    for split in SPLITS:
        paths.require_split(split)
    data = {**{split: file_md5(paths.split(split)) for split in SPLITS}, "catalog": file_md5(paths.catalog)}
    cutoffs = params.common.cutoffs
    columns = {name: resolve_metric(name, cutoffs, name) for name in policy.metrics()}
    evaluation = Evaluation.of_split(paths, "test", **params.evaluation())
    rows, prompts, catalog = evaluation.rows, evaluation.prompts, evaluation.catalog
    for version, model in sides:
        own_catalog = {f"version {version} of {model_name()}": Catalog.read(model.catalog)}
        require_shared_items({**own_catalog, str(paths.catalog): catalog})
    train = read_rows(paths.split("train"))
    baselines = _baseline_scores(policy.baselines, evaluation, params, paths)
    tables: list[pd.DataFrame] = []
    means: list[dict[str, float]] = []
    for version, model in sides:
        logger.info("version %s: generating lists for %d test prompts", version, len(prompts))
        guide = Guidance.load(model.guidance, catalog)
        found = evaluation.of_model(model.checkpoint, policy.lists == "constrained", model.settings, guide)
        tables.append(found.scores)
        means.append(mean_scores(found.scores) | evaluation.of_all_lists(found.texts))
    if policy.guard_rails.latency_p95_seconds is not None:
        for own, seconds in zip(means, latencies(params, paths, [model for _, model in sides], prompts), strict=True):
            own[LATENCY] = seconds
    gains = {}
    if len(sides) > 1:
        gains = {name: evaluation.gain(tables[0], tables[1], columns[name]) for name in policy.gains}
    metric = resolve_metric(policy.baselines.metric, cutoffs, policy.baselines.metric)
    over = {name: evaluation.gain(tables[0], other, metric) for name, other in baselines.items()}
    rail = policy.guard_rails.slices
    slices = []
    if rail is not None:
        kinds = slice_rows(rows, mentions(train, catalog), catalog)
        slices = slice_changes(kinds, [table[columns[rail.metric]] for table in tables], tables[0]["person"])
    challenger, *champion = (Side(version, own) for (version, _), own in zip(sides, means, strict=True))
    settings: dict[str, Any] = {"lists": policy.lists, "metrics": columns, "seed": params.common.seed}
    settings |= {name: getattr(params.evaluate, name) for name in ("max_prompts", "engine")}
    against = champion[0] if champion else None
    return Comparison(challenger, against, gains, slices, len(rows), len(prompts), data, settings, over)


def _baseline_scores(rule: Baselines, evaluation: Evaluation, params: Params, paths: Paths) -> dict[str, pd.DataFrame]:
    """Return the scores of each baseline of the policy on the rows.

    Baselines that the data do not allow are skipped with `all`; `InputError` is raised for one that the policy names.
    """
    names = [name for name in BASELINES if {"all", name} & set(rule.names)]
    found: dict[str, pd.DataFrame] = {}
    made_lists = kept_baselines(names, paths, evaluation.prompts, evaluation.catalog, **params.baseline_options())
    for name, made in made_lists.items():
        if not isinstance(made, str):
            found[name] = evaluation.of_lists(made.lists).scores
        elif name in rule.names:
            raise InputError(
                f"{POLICY_FILE}: baselines.names: {name} needs {made}, which these data lack; remove it from the list"
            )
    return found


def slice_changes(slices: pd.DataFrame, scores: Sequence[pd.Series], persons: pd.Series) -> list[SliceChange]:
    """Return the means on each slice; `scores` holds those of the challenger, then of the champion if there is one.

    Slices with fewer than `MIN_PERSONS` persons are left out, however many rows they have.
    """
    found = []
    for kind in slices:
        for name, where in slices.groupby(kind).groups.items():
            if persons[where].nunique() < MIN_PERSONS:
                continue
            own, *other = [float(column[where].mean()) for column in scores]
            found.append(SliceChange(str(kind), str(name), len(where), own, other[0] if other else None))
    return found


def latencies(params: Params, paths: Paths, models: Sequence[ModelFiles], prompts: list[Row]) -> list[float]:
    """Return the 95th percentile of each model's seconds for one conversation, over up to 30 test prompts.

    The models answer in turns in this process, so that other load on the machine affects all of them. One answer of
    each model is a warm-up and does not count.
    """
    device, size = params.common.device, params.common.list_length
    recommenders = [Recommender.load(one._replace(catalog=paths.catalog, device=device)) for one in models]
    step = max(1, len(prompts) // TIMED_PROMPTS)
    asked = [row["messages"] for row in prompts[::step][:TIMED_PROMPTS]]
    seconds: list[list[float]] = [[] for _ in models]
    for messages in [asked[0], *asked]:
        for own, recommender in zip(seconds, recommenders, strict=True):
            start = time.perf_counter()
            recommender.recommend([messages], size)
            own.append(time.perf_counter() - start)
    return [float(np.quantile(own[1:], _PERCENTILE)) for own in seconds]
