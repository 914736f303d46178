"""Continuous batching by vLLM's offline engine, in this process's thread; vLLM schedules the lists itself."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from convrec.generation.constraint import CatalogTrie
from convrec.generation.lists import ListSettings
from convrec.generation.model_folders import standalone
from convrec.generation.vllm_engine import VllmEngine
from convrec.project.device import pick_device
from convrec.service.batching import Batcher, Completion, finish
from convrec.service.model_files import ModelFiles
from convrec.service.served import ServedModel
from convrec.service.translation import LIST_LENGTH, Prepared, Translator

_PROMPT_LENGTH = 1024  # tokens of a prompt, where the model's settings have no limit


class _Stepwise(VllmEngine):
    """The engine of the evaluation, one step at a time."""

    def add(self, name: str, asked: Prepared) -> None:
        (decoding,) = self._sampling_params(1, [asked.request])
        self._llm.llm_engine.add_request(name, {"prompt_token_ids": asked.prompt}, decoding)

    def abort(self, names: list[str]) -> None:
        self._llm.llm_engine.abort_request(names)

    def step(self) -> list[tuple[str, list[int]]]:
        """Take a step; return the names and tokens of the lists that have ended."""
        outputs = self._llm.llm_engine.step()
        return [(output.request_id, list(output.outputs[0].token_ids)) for output in outputs if output.finished]


class VllmBatcher(Batcher):
    """Decodes with vLLM, at most `max_rows` lists at a time."""

    def __init__(self, engine: _Stepwise, max_rows: int, on_step: Callable[[int], None] = lambda tokens: None):
        self._engine = engine
        self._lists: dict[str, Completion] = {}
        self._names = map(str, itertools.count())
        super().__init__(max_rows, on_step)

    def _running(self) -> list[Completion]:
        return list(self._lists.values())

    def _join(self, asked: Sequence[tuple[Prepared, Completion]]) -> None:
        for one, completion in asked:
            name = next(self._names)
            self._engine.add(name, one)
            self._lists[name] = completion

    def _step(self) -> int:
        cancelled = [name for name, completion in self._lists.items() if completion.cancelled()]
        if cancelled:
            self._engine.abort(cancelled)
            for name in cancelled:
                del self._lists[name]
        num = len(self._lists)
        if num:
            for name, tokens in self._engine.step():
                finish(self._lists.pop(name), tokens)
        return num

    def _clear(self) -> None:
        lost, self._lists = self._lists, {}
        self._engine.abort(list(lost))

    def _free(self) -> None:
        self._engine.close()


def vllm_lengths(settings: ListSettings, trie: CatalogTrie) -> tuple[int, int]:
    """Return the longest prompt and list in tokens, whose sum is the context that vLLM is started with.

    Lists of up to 20 items, or the trained length, surely fit beside a prompt.
    """
    return settings.max_prompt_length or _PROMPT_LENGTH, trie.longest(max(settings.list_length, LIST_LENGTH))


def vllm_translator(files: ModelFiles) -> Translator:
    """Return the translator of a model whose lists vLLM decodes, within the context of `vllm_lengths`."""
    catalog, tokenizer = files.load_texts()
    translator = Translator(catalog, tokenizer, files.settings, None)
    translator.positions = sum(vllm_lengths(files.settings, translator.trie))  # vLLM rejects longer ones
    return translator


def serve_with_vllm(
    version: str,
    files: ModelFiles,
    max_rows: int,
    gpu_memory_utilization: float,
    on_step: Callable[[int], None] = lambda tokens: None,
) -> ServedModel:
    """Return a model with vLLM's engine in this process.

    Raises `InputError` if prompt and list are longer than the model's context.
    """
    translator = vllm_translator(files)
    prompt_length, length = vllm_lengths(files.settings, translator.trie)
    with standalone(files.checkpoint, files.trust_remote_code) as folder:
        engine: Any = _Stepwise.load(
            str(folder),
            pick_device(files.device),
            max_rows,
            length,
            files.settings.repetition_penalty,
            translator.trie,
            max_prompt_length=prompt_length,
            tensor_parallel_size=1,
            gpu_memory_utilization=gpu_memory_utilization,
            trust_remote_code=files.trust_remote_code,
        )
    return ServedModel(version, translator, VllmBatcher(engine, max_rows, on_step), None)
