"""Stage `demonstrations`: the teacher's lists, grounded by Remap, Reflect, collaborative evidence and Adjust."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from convrec.config.params import Params
from convrec.data.catalog import Catalog
from convrec.data.conversations import distinct_prompts, read_rows, transcript, write_rows
from convrec.data.sources.synthetic import Taste, World
from convrec.demonstrations.adjust import Fit, fit_adjust, keep_if_better
from convrec.demonstrations.calls import CallStore
from convrec.demonstrations.chat import Budget, ChatClient
from convrec.demonstrations.columns import STEP_COLUMNS
from convrec.demonstrations.demonstrator import Demonstrator, Grounded, describe_items
from convrec.demonstrations.describe import Describer
from convrec.demonstrations.evidence import Evidence
from convrec.demonstrations.grounding import Grounder
from convrec.demonstrations.prompts import choose_prompts, count_positives, seen_items
from convrec.demonstrations.quality import (
    PLACED_BY,
    answer_shapes,
    check_demonstrations,
    match_shares,
    placed_by,
    popularity,
    source_shares,
)
from convrec.demonstrations.teacher import LLMTeacher, SimilarityTeacher, SimulatedTeacher, Teacher
from convrec.demonstrations.teacher_prompts import Prompts
from convrec.demonstrations.terms import combine, evidence_lists, list_texts
from convrec.demonstrations.variants import make_variants
from convrec.errors import InputError
from convrec.evaluation.demonstration_scores import step_scores
from convrec.files.results import write_plot
from convrec.hardware.device import pick_device
from convrec.paths import Paths
from convrec.similarity.embedding import Embedder, make_embedder
from convrec.similarity.scores import Blocks, top_items
from convrec.stages.results import write_results
from convrec.tracking import Run, flatten

logger = logging.getLogger(__name__)

VARIANTS = "variants"  # the group of variants, beside the splits

Row = dict[str, Any]


def _chat_client(params: Params, paths: Paths) -> ChatClient:
    config = params.demonstrations.teacher
    return ChatClient(
        CallStore(paths.calls),
        model=config.model or "",
        budget=Budget(**config.budget.model_dump()),
        **config.model_dump(
            include={
                "base_url",
                "temperature",
                "max_completion_tokens",
                "max_concurrency",
                "timeout_seconds",
                "max_retries",
                "max_failed",
            }
        ),
    )


def _make_teacher(params: Params, paths: Paths, catalog: Catalog, embedder: Embedder) -> Teacher:
    """Return a teacher that is no language model."""
    config = params.demonstrations.teacher
    if config.kind == "similarity":
        return SimilarityTeacher(catalog, embedder)
    if not paths.world.is_file():
        raise InputError("demonstrations.teacher.kind = 'simulated' needs data.source 'synthetic'")
    frame = pd.read_parquet(paths.world)
    tastes = {p: Taste.from_json(text) for p, text in zip(frame["prompt_id"], frame["taste"], strict=True)}
    world = World(catalog, params.common.seed, params.data.synthetic.num_months)
    return SimulatedTeacher(world, tastes, config.noise, config.fault_rate, params.common.seed)


def _make_demonstrator(
    params: Params, paths: Paths, catalog: Catalog, chat: ChatClient | None, conversations: Sequence[str]
) -> Demonstrator:
    config, common, device = params.demonstrations, params.common, pick_device(params.common.device)
    describer = None
    if chat is not None:
        prompts = Prompts(Path(config.prompts), common.domain.model_dump())
        describer = Describer(chat, prompts, conversations)
    texts = describe_items(catalog, describer)
    embedder = make_embedder(texts, **config.embedder.model_dump(), device=device, store=paths.vectors)
    if chat is None:
        teacher = _make_teacher(params, paths, catalog, embedder)
    else:
        teacher = LLMTeacher(chat, prompts, catalog, config.reflect.candidates_per_call)
    return Demonstrator(
        catalog,
        teacher,
        describer,
        texts,
        embedder,
        Grounder(catalog, config.remap.min_ratio, config.remap.min_ratio_without_year),
        list_length=common.list_length,
        conversation_weight=config.remap.conversation_weight,
        judged=config.reflect.top,
        gamma=config.reflect.gamma,
        device=device,
    )


def _make_evidence(params: Params, paths: Paths, catalog: Catalog, rows: list[Row]) -> Evidence:
    """Return the collaborative evidence of the training rows."""
    config, device = params.demonstrations, pick_device(params.common.device)
    embedder = partial(make_embedder, **config.embedder.model_dump(), device=device, store=paths.vectors)
    found = config.collaborative
    return Evidence(rows, catalog, embedder, neighbours=found.neighbours, kept=found.kept, device=device)


def _best(grounded: Grounded, combined: Blocks, fit: Fit, catalog: Catalog, size: int) -> dict[str, np.ndarray]:
    """Return the top items after each step. Shape: (prompts, size) each."""
    seen = seen_items(grounded.prompts, catalog)
    return {
        "remap": top_items(grounded.remapped.scores, size, seen)[0],
        "reflect": top_items(grounded.reflected.scores, size, seen)[0],
        "collaborative": top_items(combined, size, seen)[0],
        "adjust": top_items(combined, size, seen, fit.weight, fit.bias)[0],
    }


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write a demonstration for the chosen training prompts (`choose_prompts`) and for every validation prompt."""
    config, common = params.demonstrations, params.common
    catalog = Catalog.read(paths.catalog)
    rows = {name: read_rows(paths.split(name)) for name in ("train", "validation")}
    prompts = {name: distinct_prompts(split) for name, split in rows.items()}
    conversations = [transcript(row["messages"]) for row in prompts["train"]]
    prompts["train"] = choose_prompts(prompts["train"], config.until, config.train_share, common.seed)
    order = np.random.default_rng([common.seed, 1]).permutation(len(prompts["train"]))
    number = round(len(order) * config.adjust.held_out)
    held_out, fitted = np.sort(order[:number]), np.sort(order[number : number + config.collaborative.fit_prompts])
    learnt = np.setdiff1d(np.arange(len(order)), held_out)
    variants, origins = make_variants([prompts["train"][i] for i in learnt], config.variants, common.seed)
    if variants:
        prompts[VARIANTS] = variants

    chat = _chat_client(params, paths) if config.teacher.kind == "llm" else None
    demonstrator = _make_demonstrator(params, paths, catalog, chat, conversations)
    try:
        grounded = {name: demonstrator.ground(name, split) for name, split in prompts.items()}
    finally:
        if chat is not None:
            took = {**chat.usage(), "total": asdict(chat.spent())}
            record.log_metrics({f"teacher/{key.replace('.', '/')}": float(v) for key, v in flatten(took).items()})
    positives = count_positives(rows["train"], prompts["train"], catalog)
    evidence = partial(_make_evidence, params, paths, catalog) if config.collaborative.fit_prompts else None
    combined = combine(grounded, rows, positives, fitted, catalog, evidence, common.list_length, demonstrator.device)
    fit = fit_adjust(
        combined.scores("train"),
        positives,
        held_out,
        seed=common.seed,
        **config.adjust.model_dump(exclude={"held_out"}),
    )
    seen = seen_items(prompts["train"], catalog)
    fit = keep_if_better(fit, combined.scores("train"), positives, held_out, seen, common.list_length)

    metrics: dict[str, Any] = {"train_prompts": len(prompts["train"])}
    if variants:
        metrics["variants"] = len(variants)
    frames: dict[str, pd.DataFrame] = {}
    for name, split in grounded.items():
        top = _best(split, combined.scores(name), fit, catalog, common.list_length)
        lists = {"teacher": split.answers, **{step: list_texts(best, catalog) for step, best in top.items()}}
        columns = {STEP_COLUMNS[step]: texts for step, texts in lists.items()}
        if name != "validation" and config.ground_truth_first:
            own = seen if name == "train" else seen_items(split.prompts, catalog)
            first = positives if name == "train" else positives[learnt[origins]]
            best, _ = top_items(combined.scores(name), common.list_length, own, fit.weight, fit.bias, first)
            columns[STEP_COLUMNS["adjust"]] = list_texts(best, catalog)
        check_demonstrations(columns[STEP_COLUMNS["adjust"]], split.prompts, catalog, common.list_length)
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
        if name == VARIANTS:
            continue
        chosen = held_out if name == "train" else np.arange(len(split.prompts))
        if len(chosen):
            where = "held_out" if name == "train" else name
            metrics[where] = step_scores(
                chosen,
                split.prompts,
                lists,
                evidence_lists(combined.terms[name], split.prompts, catalog, common.list_length),
                rows[name],
                catalog,
                common.list_length,
                common.cutoffs,
                common.seed,
            )
        metrics[f"{name}_answers"] = answer_shapes(split.lengths, common.list_length)
        metrics[f"{name}_titles"] = match_shares(split.remapped.teacher)
        metrics[f"{name}_sources"] = source_shares(sources)
        metrics[f"{name}_ratings"] = {"asked": split.reflected.asked, "missing": split.reflected.missing}
        if name == "train":
            shown = {"collaborative": top["collaborative"], "adjust": top["adjust"]}
            buckets, metrics["popularity_distance"] = popularity(positives, shown)
            write_plot(paths.plot("popularity"), buckets)
    for name in ("train", "validation"):
        parts = [frames[name], frames[VARIANTS]] if name == "train" and variants else [frames[name]]
        write_rows(pd.concat(parts, ignore_index=True), paths.demonstration(name))
    values, ndcg, before = combined.weights
    metrics["collaborative"] = {} if ndcg is None else {"weights": values, "ndcg": ndcg, "ndcg_before": before}
    metrics["adjust"] = {"best_epoch": fit.best_epoch, "epochs": len(fit.losses) - 1 if fit.losses else 0}
    headline, steps = f"ndcg_at_{max(common.cutoffs)}", ("teacher", "adjust")
    measured = {where: metrics[where] for where in ("held_out", "validation") if where in metrics}
    scores = {where: {step: found[step][headline] for step in steps} for where, found in measured.items()}
    headlines = {"train_prompts": metrics["train_prompts"], headline: scores}
    write_results("demonstrations", headlines, metrics, paths, record)
    write_plot(paths.plot("adjust"), fit.losses)
    for losses in fit.losses:
        record.log_metrics({f"adjust/{k}": v for k, v in losses.items() if k != "epoch"}, int(losses["epoch"]))
    record.log_dataset(paths.demonstration("train"), "demonstrations")
