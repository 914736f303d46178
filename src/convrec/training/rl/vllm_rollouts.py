"""The catalog constraint in TRL's rollouts by vLLM, colocated or by a server.

TRL has neither an argument for further options of its engine, nor one for a request per prompt. Therefore the name of
the engine's class is replaced while TRL makes the engine, and the engine (or the client of the server) is wrapped after
that: both have one method for generation, to which requests are added. Synchronising weights, sleeping, several
processes and the log-probabilities stay TRL's. A `rollout_func` would have to take all of this over, and could still
not give options to the engine.
"""

import functools
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from convrec.generation.vllm_requests import request_options
from convrec.training.rl.constrained import RolloutConstraint

_CONCURRENT_REQUESTS = 64  # the connections that TRL's client keeps


@contextmanager
def constrained_engine(constraint: RolloutConstraint) -> Iterator[None]:
    """Let the engine that TRL makes in this context load the constraint."""
    from trl.generation import vllm_generation  # noqa: PLC0415  (imports vLLM)

    from convrec.generation.vllm_constraint import engine_options  # noqa: PLC0415

    engine = vllm_generation.LLM
    with tempfile.TemporaryDirectory() as folder:  # the engine reads the trie at its start
        file = Path(folder) / "trie.safetensors"
        constraint.trie.save(file)
        vllm_generation.LLM = functools.partial(engine, **engine_options(file))
        try:
            yield
        finally:
            vllm_generation.LLM = engine


def constrain_requests(generation: Any, constraint: RolloutConstraint) -> None:
    """Let TRL's `VLLMGeneration` ask for the list of each prompt.

    Raises `ValueError` if its server was not started for constrained training.
    """
    if generation.mode == "colocate":
        generation.llm = _Engine(generation.llm, constraint)
    elif generation.accelerator.is_main_process:  # the only one with a client
        _check_server(generation.vllm_client)
        generation.vllm_client = _Client(generation.vllm_client, constraint)


def send_item_rows(generation: Any) -> None:
    """Let TRL's `VLLMGeneration` send embeddings whose item rows adapters train: merged, under the model's own names.

    TRL merges these rows, but only knows the names of LoRA's layers.
    """
    named_params = generation._iter_named_params

    def renamed() -> Iterator[tuple[str, Any]]:
        for name, value in named_params():
            if "trainable_tokens" not in name:
                yield name.replace(".token_adapter", ""), value

    generation._iter_named_params = renamed


class _Wrapper:
    """TRL's engine or client, with another `generate`."""

    def __init__(self, wrapped: Any, constraint: RolloutConstraint):
        self._wrapped, self._constraint = wrapped, constraint

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def _options(self, prompt: Sequence[int]) -> dict[str, Any]:
        return request_options(self._constraint.request(prompt))


class _Engine(_Wrapper):
    def generate(self, prompts: Sequence[dict[str, Any]], sampling_params: Any, **options: Any) -> list[Any]:
        each = [sampling_params.clone() for _ in prompts]
        for own, prompt in zip(each, prompts, strict=True):
            own.extra_args = {**(own.extra_args or {}), **self._options(prompt["prompt_token_ids"])}
        outputs: list[Any] = self._wrapped.generate(prompts, sampling_params=each, **options)
        return outputs


class _Client(_Wrapper):
    """The server takes the arguments of a list only once for all prompts of a request: each prompt is a request."""

    def generate(
        self, prompts: Sequence[Sequence[int]], generation_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> dict[str, list[Any]]:
        def ask(prompt: Sequence[int]) -> dict[str, list[Any]]:
            own = {**(generation_kwargs or {}), "vllm_xargs": self._options(prompt)}
            output: dict[str, list[Any]] = self._wrapped.generate([prompt], generation_kwargs=own, **options)
            return output

        with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as executor:
            outputs = list(executor.map(ask, prompts))
        return {name: [row for output in outputs for row in output[name]] for name in outputs[0]}


def _check_server(client: Any) -> None:
    model = client.get_server_info()["model_config"]
    processors, mode = model["logits_processors"] or [], model["logprobs_mode"]
    is_constraint = [str(name).startswith("convrec.generation.vllm_constraint") for name in processors]
    if is_constraint != [True] or mode != "processed_logprobs":
        raise ValueError(
            f"vllm_server_base_url = {client.base_url!r}: this server has logits_processors = {processors} and "
            f"logprobs_mode = {mode!r}, not those that constrained rollouts need; start it with "
            "`convrec vllm-server --training`"
        )
