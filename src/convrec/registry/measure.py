"""Measures challenger and champion on the same rows."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from convrec.data.conversations import Row, read_rows
from convrec.evaluation.baselines import Options, baseline_lists
from convrec.evaluation.beyond_accuracy import mentions
from convrec.evaluation.evaluation import Evaluation
from convrec.evaluation.scoring import mean_scores
from convrec.evaluation.slices import slice_rows
from convrec.evaluation.systems import BASELINES
from convrec.project.config.params import Params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.registry.decisions import LATENCY, Comparison, Side, SliceChange
from convrec.registry.gates import Baselines
from convrec.registry.policy import POLICY_FILE, Policy, resolve_metric
from convrec.registry.tracking import file_md5
from convrec.registry.versions import RegisteredModel
from convrec.service.recommender import Recommender

logger = logging.getLogger(__name__)

TIMED_PROMPTS = 30
_PERCENTILE = 0.95


@dataclass(frozen=True)
class Contestant:
    """A registered version and its files."""

    version: str
    checkpoint_md5: str
    model: RegisteredModel


def present_data(paths: Paths) -> dict[str, str]:
    """Return the MD5 of each file that a comparison reads. Raises `InputError` if the data have not been made yet."""
    splits = ("test", "train", "validation")
    for split in splits:
        paths.require_split(split)
    return {**{split: file_md5(paths.split(split)) for split in splits}, "catalog": file_md5(paths.catalog)}


def comparison_settings(params: Params, policy: Policy) -> dict[str, Any]:
    """Return the settings that the figures of a comparison depend on, besides versions and data."""
    common, config, rail = params.common, params.evaluate, policy.guard_rails.slices
    rule = policy.baselines
    return {
        "lists": policy.lists,
        "gains": sorted(policy.gains),
        "baselines": sorted(rule.names),
        "baseline_metric": resolve_metric(rule.metric, common.cutoffs, rule.metric) if rule.names else None,
        "embedder": params.demonstrations.embedder.model_dump() if rule.names else None,
        "slices": resolve_metric(rail.metric, common.cutoffs, rail.metric) if rail else None,
        "metrics": {name: resolve_metric(name, common.cutoffs, name) for name in policy.metrics()},
        "latency": policy.guard_rails.latency_p95_seconds is not None,
        "list_length": common.list_length,
        "max_prompts": config.max_prompts,
        "bootstrap_samples": config.bootstrap_samples,
        "seed": common.seed,
        "engine": config.engine,
    }


def compare_versions(
    params: Params, paths: Paths, policy: Policy, challenger: Contestant, champion: Contestant | None
) -> Comparison:
    """Return the comparison of both versions on the current test split and catalog, paired by row.

    Cached lists are reused. The latency is that of single conversations (see `latencies`).
    """
    data, settings = present_data(paths), comparison_settings(params, policy)
    evaluation = Evaluation.of_split(paths, "test", **params.evaluation())
    rows, prompts, catalog = evaluation.rows, evaluation.prompts, evaluation.catalog
    train = read_rows(paths.split("train"))
    baselines = _baseline_scores(policy.baselines, train, read_rows(paths.split("validation")), evaluation, params)
    sides = [challenger] if champion is None else [challenger, champion]
    tables: list[pd.DataFrame] = []
    means: list[dict[str, float]] = []
    for side in sides:
        logger.info("version %s: generating lists for %d test prompts", side.version, len(prompts))
        found = evaluation.of_model(side.model.checkpoint, policy.lists == "constrained", side.model.settings)
        tables.append(found.scores)
        means.append({**mean_scores(found.scores), "coverage": evaluation.coverage(found.texts)})
    if settings["latency"]:
        for own, seconds in zip(means, latencies(params, paths, [side.model for side in sides], prompts), strict=True):
            own[LATENCY] = seconds
    columns, gains = settings["metrics"], {}
    if champion is not None:
        gains = {name: evaluation.gain(tables[0], tables[1], columns[name]) for name in policy.gains}
    metric = settings["baseline_metric"]
    over = {name: evaluation.gain(tables[0], other, metric) for name, other in baselines.items()}
    rail = policy.guard_rails.slices
    slices = []
    if rail is not None:
        kinds = slice_rows(rows, mentions(train, catalog), catalog)
        slices = slice_changes(kinds, [table[columns[rail.metric]] for table in tables])
    both = [Side(side.version, side.checkpoint_md5, own) for side, own in zip(sides, means, strict=True)]
    other = both[1] if champion is not None else None
    return Comparison(both[0], other, gains, slices, len(rows), len(prompts), data, settings, over)


def _baseline_scores(
    rule: Baselines, train: list[Row], validation: list[Row], evaluation: Evaluation, params: Params
) -> dict[str, pd.DataFrame]:
    """Return the scores of each baseline of the policy on the rows.

    Baselines that the data do not allow are skipped with `all`; `InputError` is raised for one that the policy names.
    """
    names = [name for name in BASELINES if {"all", name} & set(rule.names)]
    found: dict[str, pd.DataFrame] = {}
    options = Options.of(**params.baseline_options())
    made_lists = baseline_lists(names, train, validation, evaluation.prompts, evaluation.catalog, options)
    for name, made in made_lists.items():
        if not isinstance(made, str):
            found[name] = evaluation.of_lists(made.lists).scores
        elif name in rule.names:
            raise InputError(
                f"{POLICY_FILE}: baselines.names: {name} needs {made}, which these data lack; remove it from the list"
            )
    return found


def slice_changes(slices: pd.DataFrame, scores: Sequence[pd.Series]) -> list[SliceChange]:
    """Return the means on each slice; `scores` holds those of the challenger, then of the champion if there is one."""
    found = []
    for kind in slices:
        for name, where in slices.groupby(kind).groups.items():
            own, *other = [float(column[where].mean()) for column in scores]
            found.append(SliceChange(str(kind), str(name), len(where), own, other[0] if other else None))
    return found


def latencies(params: Params, paths: Paths, models: Sequence[RegisteredModel], prompts: list[Row]) -> list[float]:
    """Return the 95th percentile of each model's seconds for one conversation, over up to 30 test prompts.

    The models answer in turns in this process, so that other load on the machine affects all of them. One answer of
    each model is a warm-up and does not count.
    """
    device, size = params.common.device, params.common.list_length
    recommenders = [Recommender.load(one.checkpoint, paths.catalog, one.settings, device) for one in models]
    step = max(1, len(prompts) // TIMED_PROMPTS)
    asked = [row["messages"] for row in prompts[::step][:TIMED_PROMPTS]]
    seconds: list[list[float]] = [[] for _ in models]
    for messages in [asked[0], *asked]:
        for own, recommender in zip(seconds, recommenders, strict=True):
            start = time.perf_counter()
            recommender.recommend([messages], size)
            own.append(time.perf_counter() - start)
    return [float(np.quantile(own[1:], _PERCENTILE)) for own in seconds]
