"""Baselines without a language model, fitted to the training split.

Each baseline scores all items for each prompt. Its hyper-parameters are chosen on the validation split, from ranges
that widen until the choice is inside.
"""

import datetime
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from convrec.classical.collaborative import Als, Ease, ItemKnn, Likes, Named
from convrec.classical.embedding import Embedder, TfidfEmbedder, make_embedder
from convrec.classical.guidance import Guidance
from convrec.classical.likelihood import closed_items, count_positives
from convrec.classical.neighbours import Nearest, Neighbours
from convrec.classical.sasrec import SasRec, histories, history
from convrec.classical.scores import best_columns, row_blocks
from convrec.classical.told import Told
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, date_of, date_span, distinct_prompts, is_before, read_rows, truths
from convrec.data.matching import judge, make_target
from convrec.data.parsing import WrittenList, format_list
from convrec.data.row_files import joined
from convrec.evaluation.beyond_accuracy import mentions
from convrec.evaluation.metrics import ndcg
from convrec.evaluation.systems import settings_words
from convrec.project.atomic import write_text
from convrec.project.code import code_files, make_key
from convrec.project.device import pick_device
from convrec.project.errors import InputError
from convrec.project.paths import CHECKPOINTS, Paths

logger = logging.getLogger(__name__)

Hyperparameters = dict[str, Any]
ScoreFunction = Callable[..., np.ndarray]  # arguments: a slice of the prompts, hyper-parameters; returns (B, C)
_LIBRARIES = ("implicit", "numpy", "regex", "scikit-learn", "scipy", "torch", "transformers")
_BLOCK = 256  # prompts whose scores of all items are in memory at once
_MONTH_DAYS = 30
_VALIDATION_PROMPTS = 2000  # maximum number of prompts for choosing hyper-parameters
_LEAST_GAIN = 1e-3  # of NDCG: less is noise


class Axis(NamedTuple):
    """Values of a hyper-parameter, ascending; while an end is chosen they go on by `ratio`, if that is not 0."""

    values: Sequence[Any]
    ratio: int = 0


_NEIGHBOURS = {"neighbours": Axis((25, 50, 100, 200, 400, 800, 1600), 2), "power": Axis((1, 2), 2)}
_WORDS = {"word_ngrams": Axis((1, 2))}  # words of a term of TF-IDF
_KNN = {
    "shrinkage": Axis((0.0, 10.0, 100.0), 10),
    "nearest": Axis((100, 400), 4),
    "inverse_frequency": Axis((0.0, 0.5, 1.0), 2),
}
_EASE = {"regularization": Axis((100.0, 300.0, 1000.0, 3000.0), 3)}
_ALS = {"factors": Axis((64,), 2), "regularization": Axis((10.0, 30.0, 60.0), 2), "alpha": Axis((1.0, 5.0, 20.0), 2)}
_SASREC = {"factors": Axis((64, 128)), "dropout": Axis((0.1, 0.3))}
_DISLIKES = {"dislike_weight": Axis((0.0, 0.5), 2)}


@dataclass(frozen=True)
class Options:
    """Options of all baselines."""

    size: int  # items of a list
    cutoff: int  # hyper-parameters are chosen by NDCG@cutoff on the validation split
    embedder: Callable[[Sequence[str]], Embedder]  # for `neighbours`: fits an embedder to the training conversations
    seed: int
    ordered: bool = False  # whether prompts name what was liked in order of time, which `sasrec` needs

    @classmethod
    def of(
        cls,
        size: int,
        cutoffs: Sequence[int],
        embedder: Mapping[str, Any],
        device: str,
        seed: int,
        ordered: bool,
    ) -> "Options":
        """Return the options with the largest cutoff; `embedder` has arguments of `make_embedder`."""
        return cls(size, max(cutoffs), partial(make_embedder, **embedder, device=pick_device(device)), seed, ordered)


class Scorer(NamedTuple):
    """A baseline fitted to the training split: its hyper-parameters, and the score function for prompts."""

    axes: Mapping[str, Axis]
    of: Callable[[Sequence[Row]], ScoreFunction]


class Answers(NamedTuple):
    """A baseline's lists, one for each prompt; its chosen hyper-parameters; their NDCG on the validation split."""

    lists: list[str]
    settings: Hyperparameters
    validation: float


@dataclass(frozen=True)
class Baselines:
    """The baselines of some rows: a method for each name in `systems.BASELINES`.

    A method returns the fitted baseline, or in words what it needs if the data lack it. Hyper-parameters are chosen on
    `asked`, prompts of `validation`; `named` holds what they and the prompts to answer name, `guide` the evidence of
    training.
    """

    rows: Sequence[Row]
    validation: Sequence[Row]
    asked: Sequence[Row]
    catalog: Catalog
    options: Options
    named: Named
    guide: Guidance | None

    @cached_property
    def counts(self) -> np.ndarray:
        return mentions(self.rows, self.catalog)

    @cached_property
    def told(self) -> Told:
        return Told.of(self.rows, self.catalog)

    @cached_property
    def likes(self) -> Likes:
        return Likes.of(self.told, self.catalog)

    @cached_property
    def voters(self) -> Neighbours:
        return Neighbours.fit(self.told, self.catalog, self.options.embedder)

    @property
    def dislikes(self) -> dict[str, Axis]:
        """The weights of disliked items to choose from; only 0 if no prompt names a disliked item."""
        return _DISLIKES if self.named.disliked.nnz else {"dislike_weight": Axis((0.0,))}

    def popularity(self) -> Scorer:
        return self._of_all(self.counts)

    def last_month(self) -> Scorer | str:
        last = date_span(self.rows)[1]
        if not last:
            return "a training split with dates"
        first = last[:7]
        if is_before(self.rows, self.validation) and date_span(self.validation)[0].startswith(first):
            # validation begins within this month, of which training may have a few days only
            first = str(datetime.date.fromisoformat(last) - datetime.timedelta(days=_MONTH_DAYS - 1))
        return self._of_all(mentions((row for row in self.rows if date_of(row) >= first), self.catalog))

    def neighbours(self) -> Scorer:
        widest = max(_NEIGHBOURS["neighbours"].values)

        @cache
        def fitted(word_ngrams: int) -> Neighbours:
            if word_ngrams == 2:
                return self.voters
            options = {"word_ngrams": word_ngrams}
            return Neighbours.fit(self.told, self.catalog, partial(self.options.embedder, **options))

        def of(prompts: Sequence[Row]) -> ScoreFunction:
            found: dict[int, Nearest] = {}

            def votes(part: slice, neighbours: int, power: float, word_ngrams: int = 2) -> np.ndarray:
                number = min(max(neighbours, widest), len(fitted(word_ngrams).people))
                if word_ngrams not in found or found[word_ngrams].places.shape[1] < number:
                    found[word_ngrams] = fitted(word_ngrams).nearest(prompts, number)
                return found[word_ngrams].votes(part, neighbours, power)

            return votes

        is_tfidf = isinstance(self.voters.embedder, TfidfEmbedder)
        return Scorer({**_NEIGHBOURS, **(_WORDS if is_tfidf else {})}, of)

    def item_knn(self) -> Scorer | str:
        model = lru_cache(maxsize=1)(partial(ItemKnn, self.likes.matrix))
        return self._of_named(
            lambda named, inverse_frequency, **settings: model(inverse_frequency).scores(named, **settings),
            **_KNN,
            **self.dislikes,
        )

    def ease(self) -> Scorer | str:
        # As many numbers as the square of the catalog; the search along an axis goes back to the best value.
        model = lru_cache(maxsize=2)(partial(Ease, self.likes.matrix))
        return self._of_named(
            lambda named, regularization, **settings: model(regularization).scores(named, **settings),
            **_EASE,
            **self.dislikes,
        )

    def als(self) -> Scorer | str:
        model = lru_cache(maxsize=1)(partial(Als, self.likes.matrix, seed=self.options.seed))
        return self._of_named(lambda named, **settings: model(**settings).scores(named.liked), **_ALS)

    def sasrec(self) -> Scorer | str:
        if not self.options.ordered or not self.named.liked.nnz:
            return "histories in order of time"
        positives = count_positives(self.validation, self.asked, self.catalog)
        held_out = [history(row, self.catalog) for row in self.asked], positives
        fitted = cache(partial(SasRec, histories(self.rows, self.catalog), *held_out, seed=self.options.seed))

        def of(prompts: Sequence[Row]) -> ScoreFunction:
            named = [history(row, self.catalog) for row in prompts]
            return lambda part, **settings: fitted(**settings).scores(named[part])

        return Scorer(_SASREC, of)

    def fusion(self) -> Scorer | str:
        """Return the evidence that guides the models' lists, without a model."""
        guide = self.guide
        if guide is None:
            return "evidence that has a weight"

        def of(prompts: Sequence[Row]) -> ScoreFunction:
            total = guide.total(prompts, asked_first=False)
            return lambda part, **_: total.block(part).cpu().numpy()

        return Scorer({kind: Axis((weight,)) for kind, weight in guide.weights.items()}, of)

    def _of_all(self, scores: np.ndarray) -> Scorer:
        """Return the scorer of a baseline whose scores do not depend on the prompt."""
        return Scorer({}, lambda prompts: lambda part: np.broadcast_to(scores, (len(prompts[part]), len(scores))))

    def _of_named(self, score: Callable[..., np.ndarray], **axes: Axis) -> Scorer | str:
        """Return the scorer of a baseline that scores what prompts name."""
        if not self.named.liked.nnz:
            return "prompts that name items of the catalog"

        def of(prompts: Sequence[Row]) -> ScoreFunction:
            named = Named.of(prompts, self.catalog)
            return lambda part, **settings: score(named.part(part), **settings)

        return Scorer(axes, of)


def choose(axes: Mapping[str, Axis], measure: Callable[[Hyperparameters], float]) -> tuple[Hyperparameters, float]:
    """Return settings of a high measure, and the measure: the best of the grid, then a search along each axis in turn.

    On each axis with a ratio, values on both sides of the choice are tried, down to 0. The search ends when no axis
    gains more than noise.
    """
    values = {name: list(axis.values) for name, axis in axes.items()}
    measured = cache(lambda *setting: measure(dict(zip(axes, setting, strict=True))))
    best = dict(zip(axes, max(product(*values.values()), key=lambda setting: measured(*setting)), strict=True))

    def changed(name: str, value: Any) -> float:
        return measured(*{**best, name: value}.values())

    reached, before = measured(*best.values()), -np.inf
    while reached > before:
        before = reached
        for name, axis in axes.items():
            top = max(values[name], key=partial(changed, name))
            while (beyond := _beyond(values[name], {top, best[name]}, axis.ratio)) is not None:
                if changed(name, beyond) > changed(name, top) + _LEAST_GAIN:  # or noise would go on for ever
                    top = beyond
            if changed(name, top) > reached + _LEAST_GAIN:
                best[name] = top
                reached = measured(*best.values())
    return best, reached


def _beyond(values: list[Any], chosen: Collection[Any], ratio: int) -> Any:
    """Return the next value beyond an end of ascending values that is chosen, added to them; None if no end is."""
    if ratio and values[-1] in chosen:
        values.append(values[-1] * ratio)
        return values[-1]
    if ratio and values[0] in chosen:
        below = values[0] // ratio if isinstance(values[0], int) else values[0] / ratio
        if below:
            values.insert(0, below)
            return below
    return None


def kept_baselines(
    names: Collection[str], paths: Paths, prompts: Sequence[Row], catalog: Catalog, **options: Any
) -> dict[str, Answers | str]:
    """Return `baseline_lists` of a project for these test prompts; `options` are those of `Options.of`.

    Each is kept when it is found: a promotion finds those of the stage `evaluate`, and an evaluation of another model
    searches nothing.
    """
    parameters = {
        "prompts": [row["prompt_id"] for row in prompts],
        "options": {**options, "device": (device := pick_device(options["device"]))},
    }
    embedder = Path(options["embedder"]["name"])  # a folder, or a name
    inputs = [*map(paths.split, ("train", "validation", "test")), paths.catalog, *([embedder] * embedder.is_dir())]
    inputs += sorted(paths.evidence.rglob("*.*"))
    file = CHECKPOINTS / "baselines" / f"{make_key(parameters, inputs, code_files([__name__]), _LIBRARIES)}.json"
    kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if missing := [name for name in names if name not in kept]:
        train, validation = read_rows(paths.split("train")), read_rows(paths.split("validation"))
        if "fusion" in missing and not paths.evidence.is_dir():  # or the strongest one would be passed over in silence
            raise InputError(f"{paths.evidence}: no evidence yet; run `dvc repro evidence` first")
        load = partial(Guidance.load, paths.evidence, catalog, device)
        guides = load(training=paths.evidence), load()
        found = baseline_lists(missing, train, validation, prompts, catalog, Options.of(**options), guides)
        for name, answers in found:
            kept[name] = answers
            write_text(file, json.dumps(kept))  # a run that is interrupted goes on with the next baseline
    return {name: kept[name] if isinstance(kept[name], str) else Answers(*kept[name]) for name in names}


def baseline_lists(
    names: Iterable[str],
    train: Sequence[Row],
    validation: Sequence[Row],
    prompts: Sequence[Row],
    catalog: Catalog,
    options: Options,
    guides: tuple[Guidance | None, Guidance | None],
) -> Iterator[tuple[str, Answers | str]]:
    """Yield each name and its baseline's lists for the prompts; in words what it needs, if the data lack it.

    Hyper-parameters are those of the highest mean NDCG on the validation rows that `choose` finds. With these, a
    baseline is fitted to training and validation; SASRec, which stops by validation, to training alone. `guides` have
    the evidence of training, and of both. Items with equal scores are ordered by popularity.
    """
    asked = distinct_prompts(validation, _VALIDATION_PROMPTS)
    kept = {row["prompt_id"] for row in asked}
    rows = [row for row in validation if row["prompt_id"] in kept]
    shared = asked, catalog, options, Named.of([*asked, *prompts], catalog)
    baselines = Baselines(train, validation, *shared, guides[0])
    whole = Baselines(joined(train, validation), validation, *shared, guides[1])
    closed = [closed_items(own, catalog, options.size) for own in (asked, prompts)]
    targets = [make_target(truths(row), row["seen_titles"], catalog) for row in rows]
    num_truths, metric = np.array([target.num_truths for target in targets]), f"ndcg_at_{options.cutoff}"

    def measure(scores: ScoreFunction, settings: Hyperparameters) -> float:
        lists = _lists(scores, settings, closed[0], baselines)
        written = {row["prompt_id"]: WrittenList([*own], {}, [], True) for row, own in zip(asked, lists, strict=True)}
        pairs = zip(rows, targets, strict=True)
        hits = [judge(written[row["prompt_id"]], target, catalog, options.size, "evaluation") for row, target in pairs]
        relevance = np.frombuffer(b"".join(hits), dtype=np.uint8).reshape(len(rows), -1)
        return float(ndcg(relevance, num_truths, options.cutoff).mean())

    for name in names:
        scorer = getattr(baselines, name)()
        if isinstance(scorer, str):
            logger.info("baseline %s is skipped: it needs %s", name, scorer)
            yield name, scorer
            continue

        chosen, value = choose(scorer.axes, partial(measure, scorer.of(asked)))
        logger.info("baseline %s: validation %s %.4f %s", name, metric, value, settings_words(chosen or {}))
        own = baselines if name == "sasrec" else whole
        lists = _lists(getattr(own, name)().of(prompts), chosen, closed[1], own)
        texts = [format_list([str(catalog.items[index]) for index in top]) for top in lists]
        yield name, Answers(texts, chosen, value)


def _lists(
    scores: ScoreFunction, settings: Hyperparameters, closed: Sequence[Sequence[int]], baselines: Baselines
) -> list[list[int]]:
    """Return the items of the highest scores, without the closed ones of each prompt; equal scores go by popularity."""
    order, lists = torch.from_numpy(np.argsort(-baselines.counts, kind="stable")), list[list[int]]()
    for part in row_blocks(len(closed), len(order), _BLOCK):
        found = scores(part, **settings)
        block = np.array(found, dtype=np.result_type(found, np.float32))
        for own, items in zip(block, closed[part], strict=True):
            own[items] = -np.inf
        top = best_columns(torch.from_numpy(block), min(baselines.options.size, len(order)), order).numpy()
        lists += [items[own[items] > -np.inf].tolist() for own, items in zip(block, top, strict=True)]
    return lists
