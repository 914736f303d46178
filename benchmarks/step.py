"""Time, tokens per second and peak memory of a training step with TRL's GRPOTrainer and with RankGRPOTrainer.

    python -m benchmarks.step demo                 # the embedded profile's shape, on a CPU
    python -m benchmarks.step 20M-512 20M-1024     # 20 million weights; prompts of 512 and 1,024 tokens
    python -m benchmarks.step 0.5b 1b              # in bf16, 2,048 tokens of prompt; needs a GPU

All trainers take the same steps on the same given rollouts with G = 8 completions per prompt. Rounds alternate, and
medians are compared. `plain` is RankGRPOTrainer without shared prompts. With `--rollouts`, the trainers sample
themselves. On a CPU, memory is that of one forward and backward pass, counted by tensor.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, Qwen2Config
from trl import GRPOTrainer

from benchmarks.side_by_side import film_catalog, film_tokenizer, make_trainer
from benchmarks.timing import Meter
from convrec.generation.pretrained import load_config
from convrec.project.device import pick_device, release_memory
from convrec.training.rl import trainer as trainer_module
from convrec.training.rl.trainer import RankGRPOTrainer

WARM_UP = 1


class Shape(NamedTuple):
    """The sizes of a model, or its file in configs/shapes, and the sizes of its rollouts."""

    sizes: dict[str, int] | str
    completions: int
    prompt_tokens: int | None = None  # None: a question of the embedded data, and a list of 20
    completion_tokens: int | None = None

    @property
    def needs_gpu(self) -> bool:
        """Whether a step would take a CPU many minutes."""
        return isinstance(self.sizes, str)

    def config(self) -> Any:
        """Return the model's configuration."""
        if isinstance(self.sizes, str):
            return load_config(Path("configs", "shapes", self.sizes))
        return Qwen2Config(**self.sizes, tie_word_embeddings=True)


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
    "tiny": Shape(_sizes(1678, 160, 448, 3, 5, 5), 16, 90, 45),  # heads of 32, which GPU kernels require
    "demo": Shape(_sizes(1678, 160, 448, 3, 8, 8), 128, 90, 45),
    "20M-512": Shape(_20M, 8, 512, 160),
    "20M-1024": Shape(_20M, 8, 1024, 200),
    "0.5b": Shape("Qwen--Qwen2.5-0.5B-Instruct.json", 8, 2048, 400),
    "1b": Shape("meta-llama--Llama-3.2-1B-Instruct.json", 8, 2048, 400),
}


def save_random_model(shape: Shape, folder: Path, seed: int = 0) -> int:
    """Write a model with random weights, in bfloat16 where there is a GPU; return the number of its weights."""
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    loader: Any = AutoModelForCausalLM
    model = loader.from_config(shape.config(), dtype=dtype)
    model.save_pretrained(folder)
    return model.num_parameters()


def _cpu_peak(trainer: GRPOTrainer, completions: int) -> int:
    """Return the peak bytes of one forward and backward pass."""
    trainer.state.global_step = 0
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    rows = [trainer.train_dataset[i // trainer.num_generations] for i in range(completions)]
    batch = trainer._generate_and_score_completions(rows)
    trainer.model.zero_grad(set_to_none=True)
    with Meter() as meter:
        trainer._compute_loss(trainer.model, batch).backward()
    return meter.peak


def _plain(*arguments: Any, **options: Any) -> Any:
    """Return a RankGRPOTrainer without shared prompts."""
    share, trainer_module.share_prompts = trainer_module.share_prompts, lambda model: "the benchmark's plain side"
    try:
        return RankGRPOTrainer(*arguments, **options)
    finally:
        trainer_module.share_prompts = share


TRAINERS: dict[str, Callable[..., Any]] = {"TRL": GRPOTrainer, "plain": _plain, "shared": RankGRPOTrainer}


class Measured(NamedTuple):
    """The median seconds of a trainer's steps, its tokens per second, and its peak in bytes (0: not measured)."""

    seconds: float
    tokens_per_second: float
    peak: int


def measure(
    folder: Path, shape: Shape, kinds: Sequence[str], steps: int, rounds: int, *, rollouts: bool
) -> dict[str, Measured]:
    """Return what a step takes with each of `TRAINERS` in `kinds`, for the model of this shape in `folder`.

    On a GPU, the peak is that of the whole training.
    """
    device = pick_device("auto")
    on_gpu, catalog = device == "cuda", film_catalog()
    film_tokenizer(catalog).save_pretrained(folder)
    options = {"max_steps": WARM_UP + steps, "logging_steps": 1, "per_device_train_batch_size": shape.completions}
    options |= {"use_cpu": not on_gpu, "bf16": on_gpu, "gradient_checkpointing": on_gpu}
    options |= {"max_completion_length": shape.completion_tokens, "given": not rollouts}
    lengths = shape.prompt_tokens, shape.completion_tokens
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    peaks: dict[str, int] = dict.fromkeys(kinds, 0)
    tokens = 0.0
    for _ in range(rounds):
        for kind in kinds:
            before = torch.cuda.memory_allocated() if on_gpu else 0
            trainer, times = make_trainer(TRAINERS[kind], folder, catalog, *lengths, **options)
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            trainer.train()
            seconds[kind] += times.seconds[WARM_UP:]
            tokens = trainer.state.num_input_tokens_seen / (WARM_UP + steps)
            if on_gpu:
                peaks[kind] = max(peaks[kind], torch.cuda.max_memory_allocated() - before)
            elif not peaks[kind] and not rollouts:
                peaks[kind] = _cpu_peak(trainer, shape.completions)
            del trainer, times
            release_memory()  # trainers have reference cycles
    medians = {kind: median(seconds[kind]) for kind in kinds}
    return {kind: Measured(medians[kind], tokens / medians[kind], peaks[kind]) for kind in kinds}


def _report(name: str, steps: int, rounds: int, *, rollouts: bool) -> None:
    """Print one line for each trainer with this shape."""
    shape = SHAPES[name]
    if shape.needs_gpu and not torch.cuda.is_available():
        raise SystemExit(f"the shape {name} needs a GPU")
    with tempfile.TemporaryDirectory() as path:
        weights = save_random_model(shape, Path(path))
        found = measure(Path(path), shape, list(TRAINERS), steps, rounds, rollouts=rollouts)
    with_or_without = "with" if rollouts else "without"
    sys.stdout.write(
        f"{name}: {weights / 1e6:.1f}M weights, {shape.completions} completions, {with_or_without} rollouts\n"
    )
    theirs = found["TRL"]
    for kind, own in found.items():
        line = f"  {kind:6} {own.seconds:7.3f} s a step, {own.seconds / theirs.seconds:.2f} of TRL's, "
        line += f"{own.tokens_per_second:9,.0f} tokens/s"
        if own.peak:
            line += f", {own.peak / 2**20:6,.0f} MiB, {own.peak / theirs.peak:.2f} of TRL's"
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
        _report(name, options.steps, options.rounds, rollouts=options.rollouts)


if __name__ == "__main__":
    main()
