"""Stage `evaluate`: every system's lists for the held-out test split, scored under one protocol."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from convrec.config.params import Params
from convrec.data.catalog import Catalog
from convrec.data.conversations import read_prompts, read_rows, write_rows
from convrec.data.parsing import format_list
from convrec.evaluation.baselines import Answers, Options, baseline_lists
from convrec.evaluation.beyond_accuracy import coverage, describe_lists, mentions, recommended
from convrec.evaluation.comparison import KEYS, Interval, mean_intervals, paired_interval, ratio_interval
from convrec.evaluation.headline import headline_metrics
from convrec.evaluation.scoring import score_lists
from convrec.evaluation.slices import slice_rows, slice_scores
from convrec.evaluation.systems import BASELINES, CONSTRAINED
from convrec.files.results import write_plot
from convrec.generation.lists import EngineOptions, ListSettings, check_constraint, model_lists
from convrec.generation.prompts import TRUNCATED_SHARE
from convrec.paths import TRAINED, Paths
from convrec.similarity.embedding import TfidfEmbedder
from convrec.stages.results import write_results
from convrec.tracking import Run

logger = logging.getLogger(__name__)

SYSTEM_OF_MODEL = dict(zip(TRAINED, ("zero_shot", "sft", "rank_grpo"), strict=True))
# Pairs of systems whose difference is given.
COMPARED = [
    *((f"rank_grpo{end}", other) for other in BASELINES for end in ("", CONSTRAINED)),
    ("rank_grpo", "sft"),
    ("rank_grpo" + CONSTRAINED, "sft" + CONSTRAINED),
    *((system + CONSTRAINED, system) for system in ("sft", "rank_grpo")),
]
Row = dict[str, Any]


def _model_systems(params: Params, paths: Paths, catalog: Catalog) -> Iterator[tuple[str, Path, Catalog | None]]:
    """Yield each system whose lists a model writes: its name, the model, and the catalog if it constrains the lists.

    The trained models answer both freely and under the catalog constraint.
    """
    for model, system in SYSTEM_OF_MODEL.items():
        yield system, paths.model(model), None
        if params.evaluate.constrained and system != "zero_shot":
            yield system + CONSTRAINED, paths.model(model), catalog


def _system_lists(
    params: Params,
    paths: Paths,
    catalog: Catalog,
    baselines: Mapping[str, Answers],
    prompts: list[Row],
    engine: EngineOptions,
    record: Run,
) -> dict[str, list[str]]:
    """Return the lists of every system: the baselines, the three models, and the oracle where there is one."""
    lists = {name: answers.lists for name, answers in baselines.items()}
    shares = []
    settings = ListSettings(**params.list_settings())
    for system, model, constraint in _model_systems(params, paths, catalog):
        logger.info("%s: %d prompts", system, len(prompts))
        answers = model_lists(model, prompts, settings, engine, constraint)
        lists[system] = answers.texts
        shares.append(answers.truncated_share)
    record.log_metrics({TRUNCATED_SHARE: max(shares)})  # the same constraint if the models share their tokenizer
    if paths.world.is_file():
        world = pd.read_parquet(paths.world)
        oracle = dict(zip(world["prompt_id"], world["oracle"], strict=True))
        if all(row["prompt_id"] in oracle for row in prompts):  # it knows nothing of recorded feedback
            lists["oracle"] = [format_list(list(oracle[row["prompt_id"]])) for row in prompts]
    return lists


class _HeldOut:
    """The rows that every system is scored on, one list a prompt."""

    def __init__(
        self,
        rows: list[Row],
        prompts: list[Row],
        catalog: Catalog,
        counts: np.ndarray,
        num_ranks: int,
        cutoffs: list[int],
    ):
        self.rows, self.prompts, self.catalog, self.counts = rows, prompts, catalog, counts
        self.num_ranks, self.cutoffs = num_ranks, cutoffs
        texts = [item.text() for item in catalog.items]
        self.vectors = TfidfEmbedder(texts).embed_items(texts)

    def measure(self, lists: list[str]) -> tuple[pd.DataFrame, float]:
        """Return the scores of every row, and the share of the catalog that the lists cover."""
        texts, items = {}, {}
        for row, text in zip(self.prompts, lists, strict=True):
            texts[row["prompt_id"]] = text
            items[row["prompt_id"]] = recommended(text, row["seen_titles"], self.catalog, self.num_ranks)
        scores = score_lists(texts, self.rows, self.catalog, self.num_ranks, self.cutoffs)
        described = describe_lists(items, self.rows, self.counts, self.vectors, self.catalog)
        return pd.concat([scores, described], axis=1), coverage(items.values(), len(self.catalog))


def _intervals(scores: pd.DataFrame, samples: int, seed: int) -> dict[str, Interval]:
    """Return every metric's mean with its interval; the popularity lift is a ratio of two of them."""
    names = [name for name in scores if name not in (*KEYS, "truth_popularity")]
    intervals = mean_intervals(scores, names, samples, seed)
    lift = ratio_interval(scores, "popularity", "truth_popularity", samples, seed)
    return intervals if lift is None else {**intervals, "popularity_lift": lift}


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write every system's lists, scores and intervals, overall and by slice, and Rank-GRPO's paired gains."""
    common, config = params.common, params.evaluate
    engine = EngineOptions.on_this_machine(**params.engine_options())
    catalog = Catalog.read(paths.catalog)
    train = read_rows(paths.split("train"))
    rows, prompts = read_prompts(paths.split("test"), params.evaluate.max_prompts)
    record.log_dataset(paths.split("test"), "test")
    record.log_dataset(paths.catalog, "catalog")

    if config.constrained:
        check_constraint(paths.model("sft"), prompts, catalog, common.list_length, engine.trust_remote_code)
    held_out = _HeldOut(rows, prompts, catalog, mentions(train, catalog), common.list_length, common.cutoffs)
    headline = f"ndcg_at_{max(common.cutoffs)}"
    metrics: dict[str, Any] = {"n_rows": len(rows), "n_prompts": len(prompts)}
    validation = read_rows(paths.split("validation"))
    found = baseline_lists(BASELINES, train, validation, prompts, catalog, Options.of(**params.baseline_options()))
    baselines: dict[str, Answers] = {name: answers for name, answers in found.items() if answers is not None}
    metrics["best_baseline"] = max(baselines, key=lambda name: baselines[name].validation)
    metrics["baselines"] = {
        name: {"settings": answers.settings, f"validation_{headline}": answers.validation}
        for name, answers in baselines.items()
    }
    tables, plot = {}, []
    for system, lists in _system_lists(params, paths, catalog, baselines, prompts, engine, record).items():
        scores, covered = held_out.measure(lists)
        intervals = _intervals(scores, config.bootstrap_samples, common.seed)
        means = {**{name: interval.mean for name, interval in intervals.items()}, "coverage": covered}
        tables[system] = scores
        metrics[system] = {
            **means,
            "intervals": {name: {"low": i.low, "high": i.high, "n": i.n} for name, i in intervals.items()},
        }
        plot.append({"system": system, **means})
        frame = pd.DataFrame({"prompt_id": [row["prompt_id"] for row in prompts], "response": lists})
        write_rows(frame, paths.predictions / f"{system}.parquet")
        write_rows(scores, paths.predictions / f"{system}.scores.parquet")
    gains = {}
    for system, other in COMPARED:
        if system in tables and other in tables:
            gain = paired_interval(tables[system], tables[other], headline, config.bootstrap_samples, common.seed)
            gains[f"{system}_over_{other}"] = gain._asdict()
    shown = [f"recall_at_{max(common.cutoffs)}", headline]
    kinds = slice_rows(rows, held_out.counts, catalog)
    metrics["slices"] = slice_scores(tables, kinds, shown, config.bootstrap_samples, common.seed)
    metrics[f"paired_{headline}"] = gains
    write_results("evaluate", headline_metrics(metrics, headline), metrics, paths, record, "test/")
    write_plot(paths.plot("systems"), plot)
    record.log_artifact(paths.plot("systems"))
