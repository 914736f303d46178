"""Greedy lists by vLLM's offline engine, on one or several GPUs; its server takes the same arguments."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from convrec.generation.engine import Engine, EngineOptions, TokenIds
from convrec.generation.trie import CatalogTrie, ListRequest
from convrec.generation.vllm_requests import decoding_options, request_options
from convrec.project.errors import InputError


def engine_arguments(
    path: str, options: EngineOptions, max_prompt_length: int, max_completion_length: int, trie_file: Path | None
) -> dict[str, Any]:
    """Return vLLM's arguments for a Hugging Face folder, for `vllm.LLM` and for its server.

    The weights keep the type that they are saved in. With the file of a trie, vLLM can constrain lists.
    `max_prompt_length` is that of the prompts to come, in tokens; on a CPU `gpu_memory_utilization` is the share of the
    machine's memory. Raises `InputError` where prompt and list are longer than the model's positions.
    """
    from convrec.generation.pretrained import load_config  # noqa: PLC0415  (slow)

    config = load_config(path, trust_remote_code=options.trust_remote_code)
    length, positions = max_prompt_length + max_completion_length, getattr(config, "max_position_embeddings", None)
    if positions is not None and length > positions:
        field = "common.max_completion_length" if trie_file is None else "common.list_length"
        raise InputError(
            f"{path} has {positions} positions: no room for a prompt of {max_prompt_length} tokens and a list of "
            f"{max_completion_length}; lower {field}, or common.max_prompt_length"
        )
    constraint = {}
    if trie_file is not None:
        from convrec.generation.vllm_constraint import engine_options  # noqa: PLC0415  (imports vLLM)

        constraint = engine_options(trie_file)
    return {
        "model": path,
        "skip_tokenizer_init": True,  # the tokenizer is the project's own
        "load_format": "safetensors",
        "trust_remote_code": options.trust_remote_code,
        "dtype": str(config.dtype or torch.float32).removeprefix("torch."),  # vLLM's "auto" halves float32
        "max_model_len": length,
        "max_num_seqs": options.batch_size,
        "tensor_parallel_size": options.tensor_parallel_size,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "enforce_eager": options.device == "cpu",  # compiling takes longer than it saves there
        "generation_config": "vllm",  # the folder's own sampling options are not the evaluation's
        **constraint,
    }


class VllmEngine(Engine):
    """Continuous batching by vLLM, at most `batch_size` lists at a time.

    vLLM gets token ids and returns them: the tokenizer is the project's own, as for transformers.
    """

    @classmethod
    def load(
        cls,
        path: str,
        tokenizer: Any,
        options: EngineOptions,
        max_completion_length: int,
        repetition_penalty: float,
        trie: CatalogTrie | None = None,
        *,
        max_prompt_length: int,
    ) -> "VllmEngine":
        """Return the engine of a Hugging Face folder; `engine_arguments` describes the options."""
        from vllm import LLM  # noqa: PLC0415  (not on every machine)

        with tempfile.TemporaryDirectory() as folder:  # the engine, in its own process, reads the trie at its start
            file = None
            if trie is not None:
                file = Path(folder) / "trie.safetensors"
                trie.save(file)
            llm = LLM(**engine_arguments(path, options, max_prompt_length, max_completion_length, file))
        return cls(llm, tokenizer, options.batch_size, max_completion_length, repetition_penalty, trie)

    def close(self) -> None:
        self._model.llm_engine.engine_core.shutdown()
        del self._model

    def _complete(
        self, prompts: Sequence[TokenIds], requests: Sequence[ListRequest], order: list[int]
    ) -> Iterator[list[tuple[int, TokenIds]]]:
        engine, decodings = self._model.llm_engine, self._sampling_params(len(prompts), requests)
        for index in order:
            engine.add_request(str(index), {"prompt_token_ids": prompts[index]}, decodings[index])
        finished = []
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    finished.append((int(output.request_id), list(output.outputs[0].token_ids)))
            if len(finished) >= self._batch_size or (finished and not engine.has_unfinished_requests()):
                yield finished
                finished = []

    def _sampling_params(self, num_lists: int, requests: Sequence[ListRequest]) -> list[Any]:
        """Return how each list is decoded."""
        from vllm import SamplingParams  # noqa: PLC0415  (not on every machine)

        penalty, end = self._repetition_penalty, self.tokenizer.eos_token_id
        decoding = decoding_options(self._most_tokens(requests), penalty, end)
        asked = requests if self._trie is not None else [None] * num_lists
        return [
            SamplingParams(
                detokenize=False,
                extra_args=None if request is None else request_options(request),
                **decoding,
            )
            for request in asked
        ]
