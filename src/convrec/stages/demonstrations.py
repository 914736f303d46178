"""Stage `demonstrations`: the teacher's lists, grounded by Remap, Reflect, collaborative evidence and Adjust."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse

from convrec.config import Params
from convrec.data.catalog import Catalog
from convrec.data.conversations import distinct_prompts, month_of, read_rows, transcript, truths, write_rows
from convrec.data.parsing import Entry, format_list
from convrec.data.sources.synthetic import Taste, World
from convrec.demonstrations.adjust import Fit, fit_adjust, keep_if_better
from convrec.demonstrations.answers import parse_answer
from convrec.demonstrations.calls import CallStore
from convrec.demonstrations.chat import Budget, ChatClient
from convrec.demonstrations.columns import STEP_COLUMNS
from convrec.demonstrations.combine import Weights, fit_weights
from convrec.demonstrations.describe import Describer
from convrec.demonstrations.evidence import EVIDENCE, Evidence
from convrec.demonstrations.grounding import Grounder
from convrec.demonstrations.quality import (
    PLACED_BY,
    answer_shapes,
    check_demonstrations,
    match_shares,
    placed_by,
    popularity,
    source_shares,
)
from convrec.demonstrations.reflect import Reflected, reflect
from convrec.demonstrations.remap import Remapped, remap, titles_alone
from convrec.demonstrations.teacher import LLMTeacher, SimilarityTeacher, SimulatedTeacher, Teacher
from convrec.demonstrations.teacher_prompts import Prompts
from convrec.errors import InputError
from convrec.evaluation.comparison import mean_interval
from convrec.evaluation.scoring import mean_scores, score_lists
from convrec.files.results import write_json, write_plot
from convrec.hardware.device import pick_device
from convrec.paths import Paths
from convrec.similarity.embedding import Embedder, make_embedder
from convrec.similarity.scores import Blocks, WeightedSum, sparse_scores, top_items
from convrec.tracking import Run, flatten

logger = logging.getLogger(__name__)

Row = dict[str, Any]
BOOTSTRAP_SAMPLES = 1000
REFLECTED = {"remap": 1.0, "ratings": 1.0}  # the weights of s_reflect


class Grounded(NamedTuple):
    """What the steps made of one split's answers."""

    prompts: list[Row]
    answers: list[str]
    lengths: list[int]
    remapped: Remapped
    reflected: Reflected


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


def choose_prompts(prompts: list[Row], until: str | None, share: float, seed: int) -> list[Row]:
    """Return this share of the prompts up to the end of month `until`, in their order."""
    if until is not None and not all(row["date"] for row in prompts):
        raise InputError(f"demonstrations.until = {until!r}: a training row has no date; give null")
    early = [row for row in prompts if until is None or str(row["date"])[:7] <= until]
    if not early:
        raise InputError(
            f"demonstrations.until = {until!r}: no training prompt is as early; give a later month or null"
        )
    order = np.random.default_rng(seed).permutation(len(early))
    return [early[i] for i in sorted(order[: max(1, round(len(early) * share))])]


def _positives(rows: list[Row], prompts: list[Row], catalog: Catalog) -> sparse.csr_array:
    """Return how often each item is ground truth of each prompt, over all its rows. Shape: (prompts, C)."""
    position = {row["prompt_id"]: index for index, row in enumerate(prompts)}
    pairs = [
        (position[row["prompt_id"]], index)
        for row in rows
        if row["prompt_id"] in position
        for index in (catalog.find(truth.title, truth.year) for truth in truths(row))
        if index is not None
    ]
    at = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    counts = np.ones(len(pairs), dtype=np.float32)
    return sparse.csr_array((counts, (at[0], at[1])), shape=(len(prompts), len(catalog)))  # equal places are summed


def _seen(prompts: list[Row], catalog: Catalog) -> list[list[int]]:
    """Return the catalog indices of each prompt's seen titles, whatever their year."""
    return [[i for title in row["seen_titles"] for i in catalog.indices_of_title(title)] for row in prompts]


class Demonstrator:
    """The three steps with the parameters, the catalog and the teacher that all splits share."""

    def __init__(self, params: Params, paths: Paths, catalog: Catalog, conversations: Sequence[str]):
        self.params, self.catalog = params, catalog
        self.config = params.demonstrations
        self.device = pick_device(params.common.device)
        self._store = paths.vectors
        self.chat: ChatClient | None = None
        self._describer: Describer | None = None
        if self.config.teacher.kind == "llm":
            prompts = Prompts(Path(self.config.prompts), params.common.domain.model_dump())
            self.chat = _chat_client(params, paths)
            self._describer = Describer(self.chat, prompts, conversations)
        texts = self._item_texts()
        self._embedder = self._make_embedder(texts)
        self._texts = texts
        if self.chat is None:
            self._teacher = _make_teacher(params, paths, catalog, self._embedder)
        else:
            self._teacher = LLMTeacher(self.chat, prompts, catalog, self.config.reflect.candidates_per_call)
        self._grounder = Grounder(catalog, self.config.remap.min_ratio, self.config.remap.min_ratio_without_year)

    def _item_texts(self) -> list[str]:
        """Return the catalog items' texts; the teacher describes those that the catalog has nothing but a title of."""
        texts = [item.text() for item in self.catalog.items]
        bare = [i for i, item in enumerate(self.catalog.items) if not any(item.metadata.values())]
        if self._describer is not None and bare:
            items = [self.catalog.items[i] for i in bare]
            described = self._describer.describe([str(item) for item in items], [item.title for item in items])
            for index, text in zip(bare, described, strict=True):
                texts[index] = text
        return texts

    def _describe(self, entries: Sequence[Entry]) -> list[str]:
        names = titles_alone(entries)
        return names if self._describer is None else self._describer.describe(names, [e.title for e in entries])

    def _make_embedder(self, texts: Sequence[str]) -> Embedder:
        return make_embedder(texts, **self.config.embedder.model_dump(), device=self.device, store=self._store)

    def evidence(self, train: Sequence[Row]) -> Evidence:
        """Return what the training rows tell of what people like."""
        config = self.config.collaborative
        return Evidence(
            train,
            self.catalog,
            self._make_embedder,
            neighbours=config.neighbours,
            kept=config.kept,
            device=self.device,
        )

    def ground(self, name: str, prompts: list[Row]) -> Grounded:
        """Return the teacher's answers for the prompts of a split, remapped and reflected."""
        common = self.params.common
        logger.info("%s: the teacher answers %d prompts", name, len(prompts))
        answers = self._teacher.recommend(prompts, common.list_length)
        lengths: list[int] = []

        def lists() -> Iterator[list[Entry]]:  # one at a time: the entries of all answers would fill the memory
            for text in answers:
                entries = parse_answer(text, self.catalog).entries
                lengths.append(len(entries))
                yield entries

        remapped = remap(
            lists(),
            [transcript(row["messages"]) for row in prompts],
            self.catalog,
            self._embedder,
            self._grounder,
            conversation_weight=self.config.remap.conversation_weight,
            item_texts=self._texts,
            describe=self._describe,
            device=self.device,
        )
        logger.info("%s: the judge rates the top %d", name, self.config.reflect.top)
        candidates, _ = top_items(remapped.scores, self.config.reflect.top, _seen(prompts, self.catalog))
        reflected = reflect(
            remapped.scores, candidates, self.config.reflect.gamma, lambda rated: self._teacher.judge(prompts, rated)
        )
        if reflected.missing:
            logger.warning("%s: %d of %d ratings are missing and count 0", name, reflected.missing, reflected.asked)
        return Grounded(prompts, answers, lengths, remapped, reflected)


class Combined(NamedTuple):
    """The terms of each split's scores, and the weights of their sum."""

    terms: dict[str, dict[str, Blocks]]
    weights: Weights

    def scores(self, split: str) -> Blocks:
        terms = self.terms[split]
        return WeightedSum(list(terms.values()), [self.weights.values[name] for name in terms])


def _combine(
    grounded: dict[str, Grounded],
    rows: dict[str, list[Row]],
    positives: sparse.csr_array,
    fitted: np.ndarray,
    demonstrator: Demonstrator,
) -> Combined:
    """Return the scores with collaborative evidence, with the weights that suit some training prompts best.

    A training prompt's own person gives no evidence about it. Where all of training is before validation, neither does
    what is not of an earlier month. Validation prompts have all of training. Without the step the sum is s_reflect.
    """
    terms: dict[str, dict[str, Blocks]] = {
        name: {"remap": split.remapped.scores, "ratings": sparse_scores(split.reflected.ratings, demonstrator.device)}
        for name, split in grounded.items()
    }
    if not demonstrator.config.collaborative.fit_prompts:
        return Combined(terms, Weights(REFLECTED, None, None))
    evidence = demonstrator.evidence(rows["train"])
    months = {name: [month_of(row) for row in split] for name, split in rows.items()}
    by_month = min(months["train"]) > "" and max(months["train"]) < min(months["validation"])
    for name, split in grounded.items():
        logger.info("%s: what others liked", name)
        is_train = name == "train"
        terms[name] |= evidence.terms(split.prompts, without_own=is_train, earlier=is_train and by_month)
    seen = _seen(grounded["train"].prompts, demonstrator.catalog)
    return Combined(
        terms, fit_weights(terms["train"], REFLECTED, positives, seen, fitted, demonstrator.params.common.list_length)
    )


def _best(grounded: Grounded, combined: Blocks, fit: Fit, catalog: Catalog, size: int) -> dict[str, np.ndarray]:
    """Return the top items after each step. Shape: (prompts, size) each."""
    seen = _seen(grounded.prompts, catalog)
    return {
        "remap": top_items(grounded.remapped.scores, size, seen)[0],
        "reflect": top_items(grounded.reflected.scores, size, seen)[0],
        "collaborative": top_items(combined, size, seen)[0],
        "adjust": top_items(combined, size, seen, fit.weight, fit.bias)[0],
    }


def _list_scores(
    lists: dict[str, list[str]], prompts: list[Row], rows: list[Row], catalog: Catalog, params: Params
) -> dict[str, Any]:
    """Return the mean scores of lists for these prompts' rows, by name, with intervals of the widest cutoff."""
    common = params.common
    found: dict[str, Any] = {}
    for step, texts in lists.items():
        by_prompt = {row["prompt_id"]: text for row, text in zip(prompts, texts, strict=True)}
        scores = score_lists(by_prompt, rows, catalog, common.list_length, common.cutoffs)
        intervals = {}
        for metric in (f"recall_at_{max(common.cutoffs)}", f"ndcg_at_{max(common.cutoffs)}"):
            interval = mean_interval(scores, metric, BOOTSTRAP_SAMPLES, common.seed)
            intervals[metric] = {"low": interval.low, "high": interval.high}
        found[step] = {**mean_scores(scores), "intervals": intervals}
    return found


def _scores_of(
    chosen: np.ndarray,
    split: Grounded,
    lists: dict[str, list[str]],
    terms: dict[str, Blocks],
    rows: list[Row],
    catalog: Catalog,
    params: Params,
) -> dict[str, Any]:
    """Return the scores of the lists after each step for the chosen prompts, and of each kind of evidence alone."""
    prompts = [split.prompts[i] for i in chosen]
    wanted = {row["prompt_id"] for row in prompts}
    rows = [row for row in rows if row["prompt_id"] in wanted]
    seen = _seen(split.prompts, catalog)
    alone = {}
    for name in EVIDENCE if "popularity" in terms else ():
        scores = WeightedSum([terms[name], terms["popularity"]], [1.0, 1e-6])  # equal ones go by popularity
        alone[name] = _texts(top_items(scores, params.common.list_length, seen)[0], catalog)
    steps, single = (
        _list_scores({name: [texts[i] for i in chosen] for name, texts in of.items()}, prompts, rows, catalog, params)
        for of in (lists, alone)
    )
    return {"rows": len(rows), "prompts": len(prompts), **steps, "alone": single}


def _texts(top: np.ndarray, catalog: Catalog) -> list[str]:
    return [format_list([str(catalog.items[i]) for i in row if i >= 0]) for row in top.tolist()]


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write a demonstration for the chosen training prompts (`choose_prompts`) and for every validation prompt."""
    config, common = params.demonstrations, params.common
    catalog = Catalog.read(paths.catalog)
    rows = {name: read_rows(paths.split(name)) for name in ("train", "validation")}
    prompts = {name: distinct_prompts(split) for name, split in rows.items()}
    conversations = [transcript(row["messages"]) for row in prompts["train"]]
    prompts["train"] = choose_prompts(prompts["train"], config.until, config.train_share, common.seed)

    demonstrator = Demonstrator(params, paths, catalog, conversations)
    try:
        grounded = {name: demonstrator.ground(name, split) for name, split in prompts.items()}
    finally:
        if demonstrator.chat is not None:
            took = {**demonstrator.chat.usage(), "total": asdict(demonstrator.chat.spent())}
            record.log_metrics({f"teacher/{key.replace('.', '/')}": float(v) for key, v in flatten(took).items()})
    positives = _positives(rows["train"], prompts["train"], catalog)
    order = np.random.default_rng([common.seed, 1]).permutation(len(prompts["train"]))
    number = round(len(order) * config.adjust.held_out)
    held_out, fitted = np.sort(order[:number]), np.sort(order[number : number + config.collaborative.fit_prompts])
    combined = _combine(grounded, rows, positives, fitted, demonstrator)
    fit = fit_adjust(
        combined.scores("train"),
        positives,
        held_out,
        seed=common.seed,
        **config.adjust.model_dump(exclude={"held_out"}),
    )
    seen = _seen(prompts["train"], catalog)
    fit = keep_if_better(fit, combined.scores("train"), positives, held_out, seen, common.list_length)

    metrics: dict[str, Any] = {"train_prompts": len(prompts["train"])}
    for name, split in grounded.items():
        top = _best(split, combined.scores(name), fit, catalog, common.list_length)
        lists = {"teacher": split.answers, **{step: _texts(best, catalog) for step, best in top.items()}}
        columns = {STEP_COLUMNS[step]: texts for step, texts in lists.items()}
        if name == "train" and config.ground_truth_first:
            first, _ = top_items(combined.scores(name), common.list_length, seen, fit.weight, fit.bias, positives)
            columns[STEP_COLUMNS["adjust"]] = _texts(first, catalog)
        check_demonstrations(columns[STEP_COLUMNS["adjust"]], split.prompts, catalog, common.list_length)
        sources = placed_by(split.remapped.sources.of(top["adjust"]), top["adjust"], top["reflect"])
        frame = pd.DataFrame(
            {
                "prompt_id": [row["prompt_id"] for row in split.prompts],
                "messages": [row["messages"] for row in split.prompts],
                **columns,
                "sources": [[PLACED_BY[kind] for kind in kinds] for kinds in sources.tolist()],
                "held_out": np.isin(np.arange(len(split.prompts)), held_out if name == "train" else []),
            }
        )
        write_rows(frame, paths.demonstration(name))
        chosen = held_out if name == "train" else np.arange(len(split.prompts))
        if len(chosen):
            where = "held_out" if name == "train" else name
            metrics[where] = _scores_of(chosen, split, lists, combined.terms[name], rows[name], catalog, params)
        metrics[f"{name}_answers"] = answer_shapes(split.lengths, common.list_length)
        metrics[f"{name}_titles"] = match_shares(split.remapped.teacher)
        metrics[f"{name}_sources"] = source_shares(sources)
        metrics[f"{name}_ratings"] = {"asked": split.reflected.asked, "missing": split.reflected.missing}
        if name == "train":
            shown = {"collaborative": top["collaborative"], "adjust": top["adjust"]}
            buckets, metrics["popularity_distance"] = popularity(positives, shown)
            write_plot(paths.plot("popularity"), buckets)
    values, ndcg, before = combined.weights
    metrics["collaborative"] = {} if ndcg is None else {"weights": values, "ndcg": ndcg, "ndcg_before": before}
    metrics["adjust"] = {"best_epoch": fit.best_epoch, "epochs": len(fit.losses) - 1 if fit.losses else 0}
    write_json(paths.metrics("demonstrations"), metrics)
    write_plot(paths.plot("adjust"), fit.losses)
    record.log_metrics({name.replace(".", "/"): float(value) for name, value in flatten(metrics).items()})
    for losses in fit.losses:
        record.log_metrics({f"adjust/{k}": v for k, v in losses.items() if k != "epoch"}, int(losses["epoch"]))
    record.log_dataset(paths.demonstration("train"), "demonstrations")
