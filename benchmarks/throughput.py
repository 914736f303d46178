"""Tokens per second of rollouts, and the peak of a GPU."""

import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig
from trl.trainer.utils import get_peak_flops

from benchmarks.side_by_side import GENERATIONS
from benchmarks.timing import clock, least_seconds
from convrec.generation.pretrained import load_model
from convrec.project.device import release_memory
from convrec.training.rl.rollouts import generate_groups

RTX_4090 = 165.2e12  # dense bfloat16; TRL's table of peaks lacks it


class Lengths(NamedTuple):
    """A batch of rollouts: prompts, each completed `GENERATIONS` times, and tokens of a prompt and of a completion."""

    prompts: int
    prompt_tokens: int
    completion_tokens: int

    @property
    def total(self) -> int:
        """The tokens that are generated."""
        return self.prompts * GENERATIONS * self.completion_tokens

    def draw(self) -> list[list[int]]:
        """Return random prompts, each repeated."""
        ids = torch.randint(5, 1000, (self.prompts, self.prompt_tokens), generator=torch.Generator().manual_seed(0))
        return ids.repeat_interleave(GENERATIONS, 0).tolist()


def rollout_speed(folder: Path, device: str, lengths: Lengths) -> float:
    """Return the tokens per second that transformers samples, as in a training: in bfloat16 on a GPU."""
    model = load_model(folder, dtype=torch.bfloat16 if device == "cuda" else torch.float32).to(device).eval()
    number, no_end = lengths.completion_tokens, model.config.vocab_size
    config = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=number, pad_token_id=0, eos_token_id=[no_end])
    prompts = lengths.draw()

    def sample() -> None:
        generate_groups(model, prompts, config)
        clock(model.device)

    return lengths.total / least_seconds(sample, 2)


def vllm_speed(folder: Path, device: str, lengths: Lengths) -> float | None:
    """Return the tokens per second that vLLM samples, None where it is not installed."""
    if importlib.util.find_spec("vllm") is None:
        return None
    from vllm import LLM, SamplingParams  # noqa: PLC0415  (not on every machine)

    release_memory()
    llm = LLM(
        str(folder),
        skip_tokenizer_init=True,
        load_format="safetensors",
        dtype="bfloat16" if device == "cuda" else "float32",
        max_model_len=lengths.prompt_tokens + lengths.completion_tokens,
        gpu_memory_utilization=0.5,
        enforce_eager=device == "cpu",
    )
    number = lengths.completion_tokens
    sampling = SamplingParams(n=GENERATIONS, max_tokens=number, ignore_eos=True, detokenize=False)
    prompts: list[Any] = [{"prompt_token_ids": ids} for ids in lengths.draw()[::GENERATIONS]]
    try:
        seconds = least_seconds(lambda: llm.generate(prompts, sampling, use_tqdm=False), 2)
    finally:
        llm.llm_engine.engine_core.shutdown()
    return lengths.total / seconds


def peak_flops(device: str, given: float | None) -> float | None:
    """Return the GPU's peak in FLOP/s of dense bfloat16: the given one in TFLOP/s, or TRL's table; None if unknown."""
    if given is not None:
        return given * 1e12
    if device == "cpu":
        return None
    name = torch.cuda.get_device_name()
    return RTX_4090 if "RTX 4090" in name else get_peak_flops(name, "bfloat16")
