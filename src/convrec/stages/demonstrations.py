"""Stage `demonstrations`: the teacher's lists, grounded in the catalog by Remap, Reflect, Adjust."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from convrec.config import Params
from convrec.data.catalog import Catalog
from convrec.data.conversations import distinct_prompts, read_rows, transcript, truths, write_rows
from convrec.data.synthetic import Taste, World
from convrec.demonstrations.adjust import fit_adjust
from convrec.demonstrations.embedding import Embedder, make_embedder
from convrec.demonstrations.reflect import reflect_scores
from convrec.demonstrations.remap import remap_scores
from convrec.demonstrations.teacher import LLMTeacher, SimilarityTeacher, SimulatedTeacher, Teacher
from convrec.device import pick_device
from convrec.errors import InputError
from convrec.evaluation.scoring import mean_scores, score_lists
from convrec.parsing import format_list, parse_list
from convrec.paths import Paths
from convrec.stages.files import read_catalog, write_json, write_plot
from convrec.tracking import Run

logger = logging.getLogger(__name__)

Row = dict[str, Any]


def _make_teacher(params: Params, paths: Paths, catalog: Catalog, embedder: Embedder) -> Teacher:
    config = params.demonstrations.teacher
    if config.kind == "similarity":
        return SimilarityTeacher(catalog, embedder)
    if config.kind == "llm":
        return LLMTeacher(
            catalog,
            config.model or "",
            config.base_url,
            config.temperature,
            config.max_concurrency,
            config.timeout_seconds,
            config.max_retries,
        )
    if not paths.world.is_file():
        raise InputError("demonstrations.teacher.kind = 'simulated' needs data.source 'synthetic'")
    frame = pd.read_parquet(paths.world)
    tastes = {p: Taste.from_json(text) for p, text in zip(frame["prompt_id"], frame["taste"], strict=True)}
    world = World(catalog, params.common.seed, params.data.synthetic.num_months)
    return SimulatedTeacher(world, tastes, config.noise, config.fault_rate, params.common.seed)


def _best_lists(scores: np.ndarray, prompts: list[Row], catalog: Catalog, list_length: int) -> list[str]:
    """Return the top N of each row as a formatted list; seen titles never enter."""
    lists = []
    for row, values in zip(prompts, scores, strict=True):
        items = catalog.first_unseen(np.argsort(-values, kind="stable"), row["seen_titles"], list_length)
        lists.append(format_list([str(item) for item in items]))
    return lists


def choose_prompts(prompts: list[Row], until: str | None, share: float, seed: int) -> list[Row]:
    """Return this share of the prompts up to the end of month `until`, in their order."""
    if until is not None and not all(row["date"] for row in prompts):
        raise InputError(f"demonstrations.until = {until!r}: this source carries no dates; give null")
    early = [row for row in prompts if until is None or str(row["date"])[:7] <= until]
    if not early:
        raise InputError(
            f"demonstrations.until = {until!r}: no training prompt is as early; give a later month or null"
        )
    order = np.random.default_rng(seed).permutation(len(early))
    return [early[i] for i in sorted(order[: max(1, round(len(early) * share))])]


def _positives(rows: list[Row], prompts: list[Row], catalog: Catalog) -> sparse.csr_matrix:
    """Return how often each item is ground truth of each prompt, over all its rows. Shape: (prompts, C)."""
    position = {row["prompt_id"]: index for index, row in enumerate(prompts)}
    pairs = [
        (position[row["prompt_id"]], index)
        for row in rows
        if row["prompt_id"] in position
        for index in (catalog.find(truth.title, truth.year) for truth in truths(row))
        if index is not None
    ]
    matrix = sparse.lil_matrix((len(prompts), len(catalog)), dtype=np.float32)
    for pair in pairs:
        matrix[pair] += 1
    return matrix.tocsr()


def _judge(teacher: Teacher, rows: list[Row], position: int, columns: Sequence[int]) -> Sequence[int]:
    return teacher.judge(rows[position], columns)


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write a demonstration for the chosen training prompts (`choose_prompts`) and for every validation prompt."""
    config, common = params.demonstrations, params.common
    catalog = read_catalog(paths.catalog)
    embedder = make_embedder(config.embedder, [i.text() for i in catalog.items], pick_device(common.device))
    teacher = _make_teacher(params, paths, catalog, embedder)
    rows = {name: read_rows(paths.split(name)) for name in ("train", "validation")}
    prompts = {name: distinct_prompts(split) for name, split in rows.items()}
    prompts["train"] = choose_prompts(prompts["train"], config.until, config.train_share, common.seed)

    answers, remapped, reflected = {}, {}, {}
    for name, split in prompts.items():
        logger.info("%s: the teacher answers %d prompts", name, len(split))
        answers[name] = teacher.recommend(split, common.list_length)
        entries = [[e for e in parse_list(text, catalog) if e is not None] for text in answers[name]]
        conversations = [transcript(row["messages"]) for row in split]
        remapped[name] = remap_scores(entries, conversations, catalog, embedder, config.conversation_weight)
        logger.info("%s: the judge rates the top %d", name, config.reflect.top)
        reflected[name] = reflect_scores(
            remapped[name],
            config.reflect.top,
            config.reflect.gamma,
            partial(_judge, teacher, split),
        )
    weight, bias, losses = fit_adjust(
        reflected["train"],
        _positives(rows["train"], prompts["train"], catalog),
        seed=common.seed,
        **config.adjust.model_dump(),
    )
    if losses:
        logger.info("adjust: loss %.4f after the first epoch, %.4f after the last", losses[0], losses[-1])
    adjusted = {name: weight * scores + bias for name, scores in reflected.items()}

    for name, split in prompts.items():
        lists = _best_lists(adjusted[name], split, catalog, common.list_length)
        frame = pd.DataFrame(
            {
                "prompt_id": [row["prompt_id"] for row in split],
                "messages": [row["messages"] for row in split],
                "teacher": answers[name],
                "demonstration": lists,
            }
        )
        write_rows(frame, paths.demonstration(name))
    steps = {"teacher": answers["validation"]}
    for name, scores in (("remap", remapped), ("reflect", reflected), ("adjust", adjusted)):
        steps[name] = _best_lists(scores["validation"], prompts["validation"], catalog, common.list_length)
    metrics = {}
    for name, lists in steps.items():
        texts = {row["prompt_id"]: text for row, text in zip(prompts["validation"], lists, strict=True)}
        scores = score_lists(texts, rows["validation"], catalog, common.list_length, common.cutoffs)
        metrics[name] = mean_scores(scores)
    write_json(paths.metrics("demonstrations"), {"validation": metrics, "train_prompts": len(prompts["train"])})
    write_plot(paths.plot("adjust"), ({"epoch": n, "loss": loss} for n, loss in enumerate(losses, start=1)))
    record.log_metrics({f"{step}/{name}": v for step, m in metrics.items() for name, v in m.items()})
    for epoch, loss in enumerate(losses, start=1):
        record.log_metrics({"adjust/loss": loss}, epoch)
    record.log_dataset(paths.demonstration("train"), "demonstrations")
