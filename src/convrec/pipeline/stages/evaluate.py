"""Stage `evaluate`: every system's lists for the held-out test split, scored under one protocol."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.guidance import Guidance
from convrec.data.conversations import read_rows, write_rows
from convrec.data.parsing import format_list
from convrec.evaluation.baselines import Answers, kept_baselines
from convrec.evaluation.beyond_accuracy import describe_lists, mentions
from convrec.evaluation.comparison import KEYS, SAMPLES, Interval, mean_intervals, ratio_interval
from convrec.evaluation.evaluation import Evaluation, ScoredLists
from convrec.evaluation.headline import headline_metrics
from convrec.evaluation.slices import slice_rows, slice_scores
from convrec.evaluation.systems import BASELINES, FREE, UNGUIDED
from convrec.generation.lists import check_constraint
from convrec.generation.prompts import TRUNCATED_SHARE
from convrec.project.config.params import Params
from convrec.project.paths import TRAINED, Paths
from convrec.project.results import write_plot
from convrec.registry.tracking import Run

logger = logging.getLogger(__name__)

SYSTEM_OF_MODEL = dict(zip(TRAINED, ("zero_shot", "sft", "rank_grpo"), strict=True))
# Pairs of systems whose difference is given.
COMPARED = [
    *(("rank_grpo", other) for other in ("sft", *BASELINES)),
    *((system, system + end) for system in ("sft", "rank_grpo") for end in (UNGUIDED, FREE)),
    *((system + UNGUIDED, system + FREE) for system in ("sft", "rank_grpo")),
]


def _system_lists(
    params: Params, paths: Paths, evaluation: Evaluation, baselines: Mapping[str, Answers]
) -> Iterator[tuple[str, ScoredLists]]:
    """Yield the scored lists of every system: the baselines, the three models, and the oracle where there is one."""
    for name, answers in baselines.items():
        yield name, evaluation.of_lists(answers.lists)
    guide = Guidance.load(paths.guidance, evaluation.catalog) if params.evaluate.constrained else None
    weights = None if guide is None else guide(evaluation.prompts)
    endings = {"": None} if weights is None else {UNGUIDED: None, "": weights}
    for model, system in SYSTEM_OF_MODEL.items():
        is_served = params.evaluate.constrained and system != "zero_shot"
        free = system + FREE if is_served else system
        if not (is_served and params.common.item_tokens):  # of those, only the first item of a list is learned
            logger.info("%s: %d prompts", free, len(evaluation.prompts))
            yield free, evaluation.of_model(paths.model(model), constrained=False)
        if is_served:
            with evaluation.of_guided(paths.model(model)) as scored:
                for ending, lists in zip(endings, scored(*endings.values()), strict=True):
                    yield system + ending, lists
    if paths.world.is_file():
        world = pd.read_parquet(paths.world)
        oracle = dict(zip(world["prompt_id"], world["oracle"], strict=True))
        if all(row["prompt_id"] in oracle for row in evaluation.prompts):  # it knows nothing of recorded feedback
            yield (
                "oracle",
                evaluation.of_lists([format_list(list(oracle[row["prompt_id"]])) for row in evaluation.prompts]),
            )


def _intervals(scores: pd.DataFrame, seed: int) -> dict[str, Interval]:
    """Return every metric's mean with its interval; the popularity lift is a ratio of two of them."""
    names = [name for name in scores if name not in (*KEYS, "truth_popularity")]
    intervals = mean_intervals(scores, names, SAMPLES, seed)
    lift = ratio_interval(scores, "popularity", "truth_popularity", SAMPLES, seed)
    return intervals if lift is None else {**intervals, "popularity_lift": lift}


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write every system's lists, scores and intervals, overall and by slice, and Rank-GRPO's paired gains."""
    common, config = params.common, params.evaluate
    evaluation = Evaluation.of_split(paths, "test", **params.evaluation())
    rows, prompts, catalog = evaluation.rows, evaluation.prompts, evaluation.catalog
    record.log_dataset(paths.split("test"), "test")
    record.log_dataset(paths.catalog, "catalog")

    if config.constrained:
        trust = params.base_model.trust_remote_code
        check_constraint(paths.model("sft"), prompts, catalog, common.list_length, trust)
    headline = evaluation.headline
    metrics: dict[str, Any] = {"n_rows": len(rows), "n_prompts": len(prompts)}
    found = kept_baselines(BASELINES, paths, prompts, catalog, **params.baseline_options())
    baselines = {name: answers for name, answers in found.items() if isinstance(answers, Answers)}
    metrics["best_baseline"] = max(baselines, key=lambda name: baselines[name].validation)
    metrics["baselines"] = {
        name: {"settings": answers.settings, f"validation_{headline}": answers.validation}
        for name, answers in baselines.items()
    }
    counts, texts = mentions(read_rows(paths.split("train")), catalog), [item.text() for item in catalog.items]
    vectors = TfidfEmbedder(texts).embed_items(texts)
    tables, plot, truncated = {}, [], []
    for system, lists in _system_lists(params, paths, evaluation, baselines):
        described = describe_lists(evaluation.items(lists.texts), rows, counts, vectors, catalog)
        scores = pd.concat([lists.scores, described], axis=1)
        intervals = _intervals(scores, common.seed)
        means = {name: interval.mean for name, interval in intervals.items()} | evaluation.of_all_lists(lists.texts)
        tables[system] = scores
        truncated.append(lists.truncated_share)
        metrics[system] = {
            **means,
            "intervals": {name: {"low": i.low, "high": i.high, "n": i.n} for name, i in intervals.items()},
        }
        plot.append({"system": system, **means})
        frame = pd.DataFrame({"prompt_id": list(lists.texts), "response": list(lists.texts.values())})
        write_rows(frame, paths.predictions / f"{system}.parquet")
        write_rows(scores, paths.predictions / f"{system}.scores.parquet")
    record.log_metrics({TRUNCATED_SHARE: max(truncated)})
    gains = {}
    for system, other in COMPARED:
        if system in tables and other in tables:
            gains[f"{system}_over_{other}"] = evaluation.gain(tables[system], tables[other], headline)._asdict()
    shown = [f"recall_at_{max(common.cutoffs)}", headline]
    kinds = slice_rows(rows, counts, catalog)
    metrics["slices"] = slice_scores(tables, kinds, shown, common.seed)
    metrics[f"paired_{headline}"] = gains
    record.log_results("evaluate", headline_metrics(metrics, headline), metrics, paths, "test/")
    write_plot(paths.plot("systems"), plot)
    record.log_artifact(paths.plot("systems"))
