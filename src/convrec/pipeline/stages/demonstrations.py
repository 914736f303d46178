"""Stage `demonstrations`: the teacher's lists, grounded by Remap, Reflect, collaborative evidence and Adjust."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from convrec.classical.embedding import make_embedder
from convrec.classical.guidance import Guidance
from convrec.classical.likelihood import count_positives
from convrec.classical.scores import Blocks, top_items
from convrec.data.catalog import Catalog
from convrec.data.conversations import STEP_COLUMNS, Row, Rows, distinct_prompts, read_rows, write_rows
from convrec.demonstrations.adjust import Fit, fit_adjust, keep_if_better
from convrec.demonstrations.grounding import Grounder
from convrec.demonstrations.prompts import choose_prompts
from convrec.demonstrations.quality import PLACED_BY, check_demonstrations, placed_by, popularity, split_figures
from convrec.demonstrations.steps import Demonstrator, Grounded, combine, describe_items, list_texts
from convrec.demonstrations.teachers import Setting, make_teacher
from convrec.evaluation.scoring import step_scores
from convrec.project.config.params import Params
from convrec.project.device import pick_device
from convrec.project.paths import Paths
from convrec.project.results import write_plot
from convrec.registry.tracking import Run, flatten

_HELD_OUT = 0.1  # share of the training prompts that Adjust is not fitted to


def _choose(rows: dict[str, Rows], params: Params) -> tuple[dict[str, Sequence[Row]], np.ndarray, np.ndarray]:
    """Return the prompts of train and validation that get a demonstration, and indices of training prompts.

    Those of the first array are held out of Adjust, the weights are fitted to those of the second.
    """
    config, seed = params.demonstrations, params.common.seed
    prompts: dict[str, Sequence[Row]] = {name: distinct_prompts(split) for name, split in rows.items()}
    prompts["train"] = choose_prompts(prompts["train"], config.until, config.train_share, seed)
    order = np.random.default_rng([seed, 1]).permutation(len(prompts["train"]))
    number = round(len(order) * _HELD_OUT)
    return prompts, np.sort(order[:number]), np.sort(order[number : number + config.fit_prompts])


def _make_demonstrator(params: Params, paths: Paths, catalog: Catalog, conversations: Sequence[Row]) -> Demonstrator:
    config, common, device = params.demonstrations, params.common, pick_device(params.common.device)
    setting = Setting(
        options=config.teacher.model_dump(),
        catalog=catalog,
        conversations=conversations,
        domain=common.domain.model_dump(),
        calls=paths.calls,
        world=paths.world,
        num_months=params.data.synthetic.num_months,
        seed=common.seed,
    )
    teacher = make_teacher(config.teacher.kind, setting)
    texts = describe_items(catalog, teacher)
    embedder = make_embedder(texts, **config.embedder.model_dump(), device=device)
    teacher.prepare(embedder)
    return Demonstrator(
        catalog,
        teacher,
        texts,
        embedder,
        Grounder(catalog),
        list_length=common.list_length,
        device=device,
    )


def _best(split: Grounded, combined: Blocks, fit: Fit, size: int) -> dict[str, np.ndarray]:
    """Return the top items after each step. Shape: (prompts, size) each."""
    return {
        "remap": top_items(split.remapped.scores, size, split.closed)[0],
        "reflect": top_items(split.reflected.scores, size, split.closed)[0],
        "collaborative": top_items(combined, size, split.closed)[0],
        "adjust": top_items(combined, size, split.closed, fit.weight, fit.bias)[0],
    }


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write a demonstration for each chosen training prompt and each validation prompt, and metrics of each step."""
    config, common = params.demonstrations, params.common
    size = common.list_length
    catalog = Catalog.read(paths.catalog)
    rows = {name: read_rows(paths.split(name)) for name in ("train", "validation")}
    prompts, held_out, fitted = _choose(rows, params)
    demonstrator = _make_demonstrator(params, paths, catalog, distinct_prompts(rows["train"]))
    try:
        grounded = {name: demonstrator.ground(name, own) for name, own in prompts.items()}
    finally:
        took = flatten(demonstrator.teacher.usage())
        record.log_metrics({f"teacher/{key.replace('.', '/')}": float(value) for key, value in took.items()})
    train = grounded["train"]
    positives = count_positives(rows["train"], train.prompts, catalog)
    guide = Guidance.load(paths.evidence, catalog, demonstrator.device, paths.evidence) if config.fit_prompts else None
    combined = combine(grounded, positives, fitted, guide, demonstrator.device)
    scores = combined.scores("train")
    fit = fit_adjust(scores, positives, held_out, seed=common.seed, **config.adjust.model_dump())
    fit = keep_if_better(fit, scores, positives, held_out, train.closed, size)

    metrics: dict[str, Any] = {"train_prompts": len(train.prompts)}
    frames: dict[str, pd.DataFrame] = {}
    for name, split in grounded.items():
        top = _best(split, combined.scores(name), fit, size)
        lists = {"teacher": split.answers, **{step: list_texts(best, catalog) for step, best in top.items()}}
        columns = {STEP_COLUMNS[step]: texts for step, texts in lists.items()}
        check_demonstrations(columns[STEP_COLUMNS["adjust"]], split.prompts, catalog, size)
        sources = placed_by(split.remapped.sources.of(top["adjust"]), top["adjust"], top["reflect"])
        frames[name] = pd.DataFrame(
            {
                "prompt_id": [row["prompt_id"] for row in split.prompts],
                "messages": [row["messages"] for row in split.prompts],
                **columns,
                "sources": [[PLACED_BY[kind] for kind in kinds] for kinds in sources.tolist()],
                "held_out": np.isin(np.arange(len(split.prompts)), held_out if name == "train" else []),
            }
        )
        chosen = held_out if name == "train" else np.arange(len(split.prompts))
        if len(chosen):
            metrics["held_out" if name == "train" else name] = step_scores(
                chosen, split.prompts, lists, rows[name], catalog, size, common.cutoffs, common.seed
            )
        metrics |= split_figures(name, split, sources, size)
        if name == "train":
            shown = {"collaborative": top["collaborative"], "adjust": top["adjust"]}
            buckets, metrics["popularity_distance"] = popularity(positives, shown)
            write_plot(paths.plot("popularity"), buckets)
    for name, frame in frames.items():
        write_rows(frame, paths.demonstration(name))
    _write_metrics(metrics, combined.weights, fit, params, paths, record)
    record.log_dataset(paths.demonstration("train"), "demonstrations")


def _write_metrics(
    metrics: dict[str, Any], weights: Mapping[str, float], fit: Fit, params: Params, paths: Paths, record: Run
) -> None:
    """Write and record the metrics, with those of the two fits."""
    metrics["collaborative"] = {"weights": weights} if "evidence" in weights else {}
    metrics["adjust"] = {"best_epoch": fit.best_epoch, "epochs": len(fit.losses) - 1 if fit.losses else 0}
    headline, steps = f"ndcg_at_{max(params.common.cutoffs)}", ("teacher", "adjust")
    measured = {where: metrics[where] for where in ("held_out", "validation") if where in metrics}
    scores = {where: {step: found[step][headline] for step in steps} for where, found in measured.items()}
    headlines = {"train_prompts": metrics["train_prompts"], headline: scores}
    record.log_results("demonstrations", headlines, metrics, paths)
    write_plot(paths.plot("adjust"), fit.losses)
    for losses in fit.losses:
        record.log_metrics({f"adjust/{k}": v for k, v in losses.items() if k != "epoch"}, int(losses["epoch"]))
