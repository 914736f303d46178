"""Tokens per second of rollouts, milliseconds of the LM head, and the peak of a GPU."""

import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import GenerationConfig
from trl.trainer.utils import get_peak_flops

from benchmarks.constraint import draw_requests
from benchmarks.side_by_side import GENERATIONS, World, draw_rollouts
from benchmarks.side_by_side import Lengths as StepLengths
from benchmarks.timing import clock, least_seconds
from convrec.data.catalog import Catalog
from convrec.generation.pretrained import load_model
from convrec.generation.trie import CatalogTrie, catalog_trie
from convrec.project.device import release_memory
from convrec.training.rl.constrained import RolloutConstraint
from convrec.training.rl.logprobs import log_prob_head
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


class Speed(NamedTuple):
    """What is written per second, and how long a list is on average."""

    tokens: float
    lists: float
    tokens_a_list: float
    seconds: float


@cache
def catalog_of(items: int, vocab: int) -> tuple[Catalog, CatalogTrie, Any]:
    """Return an invented catalog, its trie, and the byte-level BPE that writes its lines."""
    world = World.invented(items, vocab)
    return world.catalog, catalog_trie(world.catalog, world.tokenizer), world.tokenizer


def constrained_speed(
    model: Any, catalog: Catalog, trie: CatalogTrie, tokenizer: Any, lists: int, length: int, prompt: int
) -> Speed:
    """Return the speed of sampled lists, guided by 200 random items each, as a training samples them."""
    constraint = RolloutConstraint(catalog, trie, length)
    prompts = Lengths(lists // GENERATIONS, prompt, 1).draw()
    _, guided = draw_requests(trie, len(prompts), length)
    rows = [
        {"seen_titles": [], "guided_items": weights.items.tolist(), "log_weights": weights.logs.tolist()}
        for weights in (own.log_weights for own in guided[::GENERATIONS])
        for _ in range(GENERATIONS)
    ]
    constraint.begin(prompts, rows)
    end = tokenizer.eos_token_id
    config = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=4096, pad_token_id=end, eos_token_id=[end])
    written: list[int] = []

    def sample() -> None:
        found = generate_groups(model, prompts, config, constraint)
        clock(model.device)
        written.append(sum(map(len, found)))

    torch.manual_seed(0)
    seconds = least_seconds(sample, 2)
    tokens = sum(written[1:]) / 2
    return Speed(tokens / seconds, lists / seconds, tokens / lists, seconds)


def head_milliseconds(model: Any, world: World, trie: CatalogTrie, tokens: int) -> Iterator[tuple[str, float]]:
    """Yield what a head computes, and its median time for about this many tokens, forward and backward."""
    lists = max(1, tokens // 200)
    prompts, completions = draw_rollouts(world, StepLengths(prompt=64), lists + -lists % GENERATIONS, 0)
    rows = [[*prompt, *own] for prompt, own in zip(prompts, completions, strict=True)]
    width = -(-tokens // len(rows))
    ids = torch.tensor([row[:64] + (row[64:] + row[-1:] * width)[:width] for row in rows], device=model.device)
    mask = torch.tensor([[1] * min(len(row), 64 + width) + [0] * (64 + width - len(row)) for row in rows])
    states = torch.randn(len(rows), width, model.config.hidden_size, device=model.device, dtype=model.dtype)
    states.requires_grad_()
    constraint = RolloutConstraint(world.catalog, trie, 20)
    constraint.begin(prompts, [{"seen_titles": []} for _ in prompts])
    allowed = constraint.allowed(np.stack([ids.cpu().numpy(), mask.numpy()]), width)
    mask = mask.to(model.device)
    ways = {"whole vocabulary": (None, False), "constrained": (allowed, False)}
    if model.device.type == "cuda":
        ways |= {"constrained, compiled": (allowed, True)}
    for name, (own, compiled) in ways.items():
        score, times = log_prob_head(model, 1.0, 1.0, compiled), []
        for _ in range(12):
            model.zero_grad()
            states.grad = None
            start = clock(model.device)
            log_probs, _ = score(states, ids, mask, own)
            log_probs.sum().backward()
            times.append(clock(model.device) - start)
        yield name, 1000 * median(times[2:])


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
