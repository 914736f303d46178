"""Greedy lists for prompts: one interface, and the engine of transformers. vLLM's is in `vllm_engine`."""

import importlib.util
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from convrec.generation.prompt_tokens import token_ids
from convrec.generation.prompts import Prompt
from convrec.generation.trie import CatalogTrie, ListRequest
from convrec.project.device import pick_device
from convrec.project.errors import InputError

logger = logging.getLogger(__name__)

TokenIds = list[int]


def require_vllm(
    tensor_parallel_size: int,
    engine_field: str = "evaluate.engine = 'vllm'",
    size_field: str = "evaluate.vllm_tensor_parallel_size",
) -> None:
    """Raise `InputError` where vLLM is not installed, or there are fewer GPUs than it is to use.

    The message names the fields that ask for them.
    """
    if importlib.util.find_spec("vllm") is None:
        raise InputError(
            f"{engine_field}: vLLM is not installed; pip install -e '.[gpu]', or use the engine transformers"
        )
    gpus = torch.cuda.device_count()
    if gpus and tensor_parallel_size > gpus:
        raise InputError(f"{size_field} = {tensor_parallel_size}: this machine has {gpus} GPUs; lower it")


@dataclass(frozen=True)
class EngineOptions:
    """The engine that generates lists, and its use of the machine; these options change lists only by rounding."""

    engine: Literal["transformers", "vllm"]
    device: str
    batch_size: int
    tensor_parallel_size: int
    gpu_memory_utilization: float
    trust_remote_code: bool = False  # run the code in a model's repository

    @classmethod
    def on_this_machine(
        cls, engine: Literal["transformers", "vllm"], device: str, tensor_parallel_size: int, **options: Any
    ) -> "EngineOptions":
        """Return the options with the device that `device` names here (`auto`: the best there is).

        Raises `InputError` where the engine is not installed.
        """
        if engine == "vllm":
            require_vllm(tensor_parallel_size)
        return cls(engine, pick_device(device), tensor_parallel_size=tensor_parallel_size, **options)


class Engine(ABC):
    """Completes prompts greedily by a library's model; an engine adds how the library completes token ids.

    Every engine reads the same tokens: those of the chat template, or the ids it is given. A list ends before the
    tokenizer's end token. `repetition_penalty` above 1 lowers the score of every token that the prompt or the list
    holds already. With a `trie`, every prompt needs a request, and its list is what that asks for, to the letter; it
    takes what tokens it needs, whatever `max_completion_length`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        batch_size: int,
        max_completion_length: int,
        repetition_penalty: float,
        trie: CatalogTrie | None = None,
    ):
        self._model, self.tokenizer = model, tokenizer
        self._batch_size, self._max_completion_length = batch_size, max_completion_length
        self._repetition_penalty = repetition_penalty
        self._trie = trie

    def generate(self, prompts: Sequence[Prompt], requests: Sequence[ListRequest] = ()) -> list[str]:
        """Return one list a prompt, in order, without special tokens."""
        texts = [""] * len(prompts)
        for batch in self.stream(token_ids(self.tokenizer, prompts), requests):
            for index, text in batch:
                texts[index] = text
        return texts

    def stream(
        self, prompts: Sequence[TokenIds], requests: Sequence[ListRequest] = ()
    ) -> Iterator[list[tuple[int, str]]]:
        """Yield batches of finished lists, each with its prompt's index, as they come; tell the progress.

        The longest prompts come first: a batch that does not fit in memory fails at once. Raises `InputError` for a
        request that cannot be met.
        """
        if len(requests) != (len(prompts) if self._trie is not None else 0):
            raise ValueError(
                f"{len(requests)} requests for {len(prompts)} prompts; with a trie give each prompt its own"
            )
        if self._trie is not None:
            self._trie.check(requests)
        order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
        start, done, tokens = time.monotonic(), 0, 0
        for batch in self._complete(prompts, requests, order):
            finished = [(index, self._until_end(completion)) for index, completion in batch]
            yield [(index, self.tokenizer.decode(ids, skip_special_tokens=True)) for index, ids in finished]
            done, tokens = done + len(finished), tokens + sum(len(ids) for _, ids in finished)
            seconds = time.monotonic() - start
            left = seconds / done * (len(order) - done)
            speed = tokens / max(seconds, 1e-9)
            words = "generated %d of %d lists, %.0f tokens/s, %.0f s left"
            logger.info(words, done, len(order), speed, left)

    @abstractmethod
    def close(self) -> None:
        """Free the memory of the model; the engine cannot be used again."""

    @abstractmethod
    def _complete(
        self, prompts: Sequence[TokenIds], requests: Sequence[ListRequest], order: list[int]
    ) -> Iterator[list[tuple[int, TokenIds]]]:
        """Yield batches of finished completions, each with its prompt's index, nearly in the given order."""

    def _most_tokens(self, requests: Sequence[ListRequest]) -> int:
        """Return the maximum number of tokens of a completion."""
        if self._trie is None:
            return self._max_completion_length
        return self._trie.longest(max(request.length for request in requests))

    def _until_end(self, completion: TokenIds) -> TokenIds:
        end = self.tokenizer.eos_token_id
        return completion[: completion.index(end)] if end in completion else completion


class TransformersEngine(Engine):
    """Greedy decoding with transformers, in batches sorted by length."""

    @classmethod
    def load(
        cls,
        path: str,
        tokenizer: Any,
        options: EngineOptions,
        max_completion_length: int,
        repetition_penalty: float,
        trie: CatalogTrie | None = None,
    ) -> "TransformersEngine":
        """Return the engine of a Hugging Face folder, in the type that its weights are saved in."""
        from convrec.generation.pretrained import load_model  # noqa: PLC0415  (10 s to import)

        model = load_model(path, trust_remote_code=options.trust_remote_code, dtype="auto")
        model.to(options.device)
        return cls(model, tokenizer, options.batch_size, max_completion_length, repetition_penalty, trie)

    def close(self) -> None:
        del self._model
        torch.cuda.empty_cache()

    def _complete(
        self, prompts: Sequence[TokenIds], requests: Sequence[ListRequest], order: list[int]
    ) -> Iterator[list[tuple[int, TokenIds]]]:
        for first in range(0, len(order), self._batch_size):
            rows = order[first : first + self._batch_size]
            completions = self.complete([prompts[i] for i in rows], [requests[i] for i in rows] if requests else ())
            yield list(zip(rows, completions, strict=True))

    @torch.inference_mode()
    def complete(self, prompts: Sequence[TokenIds], requests: Sequence[ListRequest] = ()) -> list[TokenIds]:
        """Return one completion's tokens a prompt, all in one batch; behind its end token there may be others."""
        from transformers import GenerationConfig  # noqa: PLC0415  (10 s to import)

        from convrec.generation.jump_forward import can_jump, pad_prompts, roomy_cache, write_lists  # noqa: PLC0415
        from convrec.generation.processors import CatalogConstraint, only_settings  # noqa: PLC0415

        model, was_training = self._model, self._model.training
        model.eval()
        try:
            if self._trie is not None and can_jump(model):
                return write_lists(model, prompts, self._trie, requests, penalty=self._repetition_penalty)
            end, pad = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
            config = GenerationConfig(
                do_sample=False,
                max_new_tokens=self._most_tokens(requests),
                repetition_penalty=self._repetition_penalty,
                pad_token_id=end if pad is None else pad,
                eos_token_id=end,
            )
            ids, mask = pad_prompts(prompts, model.device)
            with only_settings(model, config):
                output = model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    generation_config=config,
                    past_key_values=roomy_cache() if can_jump(model) else None,
                    logits_processor=[] if self._trie is None else [CatalogConstraint(self._trie, requests)],
                )
        finally:
            model.train(was_training)
        return output[:, ids.shape[1] :].tolist()
