"""Time, tokens per second and peak memory of a training step with TRL's GRPOTrainer and with RankGRPOTrainer.

    python -m benchmarks.step demo                 # the embedded profile's shape, on a CPU
    python -m benchmarks.step 20M-512 20M-1024     # 20 million weights; prompts of 512 and 1,024 tokens
    python -m benchmarks.step published            # 0.5B in bf16, 2,048 tokens of prompt; needs a GPU

All trainers take the same steps on the same given rollouts with G = 8 completions per prompt. Rounds alternate, and
medians are compared. `plain` is RankGRPOTrainer without shared prompts. With `--rollouts`, the trainers sample
themselves. On a CPU, memory is that of one forward and backward pass, counted by tensor.
"""

import argparse
import gc
import sys
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOTrainer

from benchmarks.side_by_side import film_catalog, film_tokenizer, make_trainer
from convrec.rl import trainer as trainer_module
from convrec.rl.trainer import RankGRPOTrainer

WARM_UP = 1


class Shape(NamedTuple):
    """The sizes of a model and of its rollouts."""

    sizes: dict[str, int]
    completions: int
    prompt_tokens: int | None = None  # None: a question of the embedded data, and a list of 20
    completion_tokens: int | None = None


def _sizes(vocab: int, hidden: int, intermediate: int, layers: int, heads: int, key_value_heads: int) -> dict[str, int]:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
    }


_20M = _sizes(16_384, 384, 1024, 8, 6, 2)
SHAPES = {
    "demo": Shape(_sizes(1678, 160, 448, 3, 8, 8), 128, 90, 45),
    "20M-512": Shape(_20M, 8, 512, 160),
    "20M-1024": Shape(_20M, 8, 1024, 200),
    "published": Shape(_sizes(151_936, 896, 4864, 24, 14, 2), 8, 2048, 400),
}


class PeakBytes(TorchDispatchMode):
    """Measures the peak bytes of tensors that are created in the block."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak, self._known = 0, 0, set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                key = storage._cdata
                if key not in self._known:
                    self._known.add(key)
                    self.live += storage.nbytes()
                    self.peak = max(self.peak, self.live)
                    weakref.finalize(storage, self._free, key, storage.nbytes())
        return result

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def _cpu_peak(trainer: GRPOTrainer, completions: int) -> int:
    """Return the peak bytes of one forward and backward pass."""
    trainer.state.global_step = 0
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    rows = [trainer.train_dataset[i // trainer.num_generations] for i in range(completions)]
    batch = trainer._generate_and_score_completions(rows)
    trainer.model.zero_grad(set_to_none=True)
    with PeakBytes() as memory:
        trainer._compute_loss(trainer.model, batch).backward()
    return memory.peak


def _plain(*arguments: Any, **options: Any) -> Any:
    """Return a RankGRPOTrainer without shared prompts."""
    share, trainer_module.share_prompts = trainer_module.share_prompts, lambda model: "the benchmark's plain side"
    try:
        return RankGRPOTrainer(*arguments, **options)
    finally:
        trainer_module.share_prompts = share


TRAINERS: dict[str, Callable[..., Any]] = {"TRL": GRPOTrainer, "plain": _plain, "shared": RankGRPOTrainer}


def measure(name: str, steps: int, rounds: int, *, rollouts: bool) -> None:
    """Print one line for each trainer with this shape."""
    shape = SHAPES[name]
    on_gpu = torch.cuda.is_available()
    if name == "published" and not on_gpu:
        raise SystemExit("the published shape needs a GPU")
    catalog = film_catalog()
    tokenizer = film_tokenizer(catalog)
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(Qwen2Config(**shape.sizes, tie_word_embeddings=True))
        millions = model.num_parameters() / 1e6
        (model.to(torch.bfloat16) if on_gpu else model).save_pretrained(folder)
        del model
        tokenizer.save_pretrained(folder)
        options = {"max_steps": WARM_UP + steps, "logging_steps": 1, "per_device_train_batch_size": shape.completions}
        options |= {"use_cpu": not on_gpu, "bf16": on_gpu, "gradient_checkpointing": on_gpu}
        options |= {"max_completion_length": shape.completion_tokens, "given": not rollouts}
        lengths = shape.prompt_tokens, shape.completion_tokens
        seconds: dict[str, list[float]] = {kind: [] for kind in TRAINERS}
        peaks: dict[str, int] = dict.fromkeys(TRAINERS, 0)
        tokens = 0.0
        for _ in range(rounds):
            for kind, make in TRAINERS.items():
                trainer, times = make_trainer(make, folder, catalog, *lengths, **options)
                if on_gpu:
                    torch.cuda.reset_peak_memory_stats()
                trainer.train()
                seconds[kind] += times.seconds[WARM_UP:]
                tokens = trainer.state.num_input_tokens_seen / (WARM_UP + steps)
                if on_gpu:
                    peaks[kind] = max(peaks[kind], torch.cuda.max_memory_allocated())
                elif not peaks[kind] and not rollouts:
                    peaks[kind] = _cpu_peak(trainer, shape.completions)
                del trainer, times
                gc.collect()  # trainers have reference cycles
                torch.cuda.empty_cache()
    with_or_without = "with" if rollouts else "without"
    sys.stdout.write(f"{name}: {millions:.1f}M weights, {shape.completions} completions, {with_or_without} rollouts\n")
    for kind in TRAINERS:
        took, theirs = median(seconds[kind]), median(seconds["TRL"])
        line = f"  {kind:6} {took:7.3f} s a step, {took / theirs:.2f} of TRL's, {tokens / took:9,.0f} tokens/s"
        if peaks[kind]:
            line += f", {peaks[kind] / 2**20:6,.0f} MiB, {peaks[kind] / peaks['TRL']:.2f} of TRL's"
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Measure the given shapes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="+", choices=SHAPES)
    parser.add_argument("--rollouts", action="store_true", help="let the trainers sample")
    parser.add_argument("--steps", type=int, default=4, help="steps of each trainer per round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for name in options.shapes:
        measure(name, options.steps, options.rounds, rollouts=options.rollouts)


if __name__ == "__main__":
    main()
