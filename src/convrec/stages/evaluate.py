"""Stage `evaluate`: every system's lists for the held-out test split, scored under one protocol."""

import logging
from collections import Counter
from typing import Any

import pandas as pd

from convrec.config import Params
from convrec.data.catalog import Catalog
from convrec.data.conversations import read_rows, truths, write_rows
from convrec.evaluation.comparison import mean_interval, paired_interval
from convrec.evaluation.scoring import mean_scores, score_lists
from convrec.generation.lists import EngineOptions, Settings, model_lists
from convrec.generation.prompts import TRUNCATED_SHARE
from convrec.parsing import format_list
from convrec.paths import TRAINED, Paths
from convrec.stages.files import read_catalog, read_test_rows, write_json, write_plot
from convrec.tracking import Run

logger = logging.getLogger(__name__)

SYSTEM_OF_MODEL = dict(zip(TRAINED, ("zero_shot", "sft", "rank_grpo"), strict=True))
Row = dict[str, Any]


def popularity_lists(train: list[Row], prompts: list[Row], catalog: Catalog, list_length: int) -> list[str]:
    """Return for each prompt the items liked most often in training, the seen ones left out."""
    found = (catalog.find(truth.title, truth.year) for row in train for truth in truths(row))
    counts = Counter(index for index in found if index is not None)
    order = sorted(range(len(catalog)), key=lambda index: -counts[index])
    lists = (catalog.first_unseen(order, row["seen_titles"], list_length) for row in prompts)
    return [format_list([str(item) for item in items]) for items in lists]


def _system_lists(
    params: Params, paths: Paths, catalog: Catalog, prompts: list[Row], engine: EngineOptions, record: Run
) -> dict[str, list[str]]:
    """Return the lists of every system: the baseline, the three models, and the oracle where there is one."""
    train = read_rows(paths.split("train"))
    lists = {"popularity": popularity_lists(train, prompts, catalog, params.common.list_length)}
    shares = []
    for model, system in SYSTEM_OF_MODEL.items():
        logger.info("%s: %d prompts", system, len(prompts))
        answers = model_lists(paths.model(model), prompts, Settings.of(params), engine)
        lists[system] = answers.texts
        shares.append(answers.truncated_share)
    record.log_metrics({TRUNCATED_SHARE: max(shares)})  # one and the same, where the models share their tokenizer
    if paths.world.is_file():
        world = pd.read_parquet(paths.world)
        oracle = dict(zip(world["prompt_id"], world["oracle"], strict=True))
        lists["oracle"] = [format_list(list(oracle[row["prompt_id"]])) for row in prompts]
    return lists


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write every system's lists, scores and intervals, and the paired gain of Rank-GRPO."""
    common, config = params.common, params.evaluate
    engine = EngineOptions.of(params)
    catalog = read_catalog(paths.catalog)
    rows, prompts = read_test_rows(params, paths)
    record.log_dataset(paths.split("test"), "test")
    record.log_dataset(paths.catalog, "catalog")

    headline = f"ndcg_at_{max(common.cutoffs)}"
    shown = [f"{name}_at_{k}" for name in ("recall", "ndcg") for k in common.cutoffs] + ["in_catalog"]
    metrics: dict[str, Any] = {"n_rows": len(rows), "n_prompts": len(prompts)}
    tables, plot = {}, []
    for system, lists in _system_lists(params, paths, catalog, prompts, engine, record).items():
        texts = {row["prompt_id"]: text for row, text in zip(prompts, lists, strict=True)}
        scores = score_lists(texts, rows, catalog, common.list_length, common.cutoffs)
        tables[system] = scores
        intervals = {m: mean_interval(scores, m, config.bootstrap_samples, common.seed) for m in shown}
        metrics[system] = {
            **mean_scores(scores),
            "intervals": {name: {"low": i.low, "high": i.high} for name, i in intervals.items()},
        }
        plot.append({"system": system, **mean_scores(scores)})
        frame = pd.DataFrame({"prompt_id": [row["prompt_id"] for row in prompts], "response": lists})
        write_rows(frame, paths.predictions / f"{system}.parquet")
        write_rows(scores, paths.predictions / f"{system}.scores.parquet")
        record.log_metrics({f"test/{system}/{name}": value for name, value in mean_scores(scores).items()})
    gains = {}
    for baseline in ("sft", "popularity"):
        gain = paired_interval(tables["rank_grpo"], tables[baseline], headline, config.bootstrap_samples, common.seed)
        gains[f"rank_grpo_over_{baseline}"] = gain._asdict()
        record.log_metrics({f"test/gain_over_{baseline}/{key}": v for key, v in gain._asdict().items()})
    write_json(paths.metrics("evaluate"), {**metrics, f"paired_{headline}": gains})
    write_plot(paths.plot("systems"), plot)
    record.log_artifact(paths.metrics("evaluate"))
