"""Greedy lists for prompts: one interface, one engine a library."""

import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from convrec.generation.prompts import Prompt

logger = logging.getLogger(__name__)


class Engine(Protocol):
    """Anything that completes chat prompts greedily."""

    def generate(self, prompts: Sequence[Prompt]) -> list[str]:
        """Return one completion a prompt, in order, without special tokens."""


class TransformersEngine:
    """Greedy decoding with transformers, in batches sorted by length.

    `repetition_penalty` above 1 lowers the score of every token that the prompt or the list holds already.
    """

    def __init__(
        self, model: Any, tokenizer: Any, batch_size: int, max_completion_length: int, repetition_penalty: float
    ):
        self._model, self.tokenizer = model, tokenizer
        self._batch_size, self._max_completion_length = batch_size, max_completion_length
        self._repetition_penalty = repetition_penalty

    @classmethod
    def load(
        cls, path: str, device: str, batch_size: int, max_completion_length: int, repetition_penalty: float
    ) -> "TransformersEngine":
        """Return the engine of a Hugging Face folder on this device."""
        from transformers import AutoModelForCausalLM  # noqa: PLC0415  (10 s to import)

        from convrec.generation.tokenizer import load_tokenizer  # noqa: PLC0415

        tokenizer = load_tokenizer(path)
        model: Any = AutoModelForCausalLM.from_pretrained(path)
        model.to(device)
        return cls(model, tokenizer, batch_size, max_completion_length, repetition_penalty)

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt]) -> list[str]:
        texts = [self.tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        completions = [""] * len(texts)
        was_training = self._model.training
        self._model.eval()
        start = time.monotonic()
        for first in range(0, len(order), self._batch_size):
            rows = order[first : first + self._batch_size]
            batch = self.tokenizer(
                [texts[i] for i in rows],
                return_tensors="pt",
                padding=True,
                padding_side="left",
                add_special_tokens=False,
                return_token_type_ids=False,
            ).to(self._model.device)
            output = self._model.generate(
                **batch,
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                max_new_tokens=self._max_completion_length,
                repetition_penalty=self._repetition_penalty,
                pad_token_id=self.tokenizer.pad_token_id,
                eos_token_id=self.tokenizer.eos_token_id,
            )
            decoded = self.tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
            for row, text in zip(rows, decoded, strict=True):
                completions[row] = text
            done = first + len(rows)
            logger.info("generated %d of %d lists, %.0f s", done, len(order), time.monotonic() - start)
        self._model.train(was_training)
        return completions
