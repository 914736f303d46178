"""Time, memory and utilization of a training step with TRL's GRPOTrainer and with RankGRPOTrainer, by its parts.

    python -m benchmarks.step demo                 # the demo's shape before item tokens, on a CPU
    python -m benchmarks.step 20M-512 20M-1024     # 20 million weights; prompts of 512 and 1,024 tokens
    python -m benchmarks.step 0.5b 0.5b-8          # in bf16, 48 and 8 lists of 400 tokens, prompts of 2,048; on a GPU
    python -m benchmarks.step 0.5b-lists           # 48 lists of 20 items, prompts of log-normal lengths; on a GPU

All trainers take the same steps on the same given rollouts with G = 8 completions per prompt, drawn before the first
step. Rounds alternate, and medians are compared. `plain` is RankGRPOTrainer without shared prompts, `constrained` has
the catalog constraint. The suffix `-recomputed` turns gradient checkpointing on, which is TRL's default, and
`-compiled` the compiled layers. With `--rollouts`, the trainers sample themselves. On a CPU, memory is that of one
forward and backward pass, counted by tensor.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, Qwen2Config
from trl import GRPOTrainer

from benchmarks.constraint import NUM_ITEMS
from benchmarks.side_by_side import NUM_RANKS, Lengths, World, draw_rollouts, make_trainer
from benchmarks.throughput import peak_flops
from benchmarks.timing import Meter
from convrec.generation.pretrained import load_config
from convrec.generation.trie import catalog_trie
from convrec.project.device import pick_device, release_memory
from convrec.training.rl import trainer as trainer_module
from convrec.training.rl.constrained import RolloutConstraint
from convrec.training.rl.trainer import RankGRPOTrainer

WARM_UP = 2
KINDS = (
    "TRL-recomputed",
    "TRL",
    "plain",
    "shared-recomputed",
    "shared",
    "shared-compiled",
    "shared-compiled-recomputed",
    "constrained",
    "constrained-compiled",
)


class Shape(NamedTuple):
    """The sizes of a model, or its file in configs/shapes, and the sizes of its rollouts."""

    sizes: dict[str, int] | str
    completions: int
    lengths: Lengths
    items: int | None = None  # of an invented catalog; None: the embedded one

    @property
    def needs_gpu(self) -> bool:
        """Whether a step would take a CPU many minutes."""
        return isinstance(self.sizes, str)

    def config(self) -> Any:
        """Return the model's configuration."""
        if isinstance(self.sizes, str):
            return load_config(Path("configs", "shapes", self.sizes))
        return Qwen2Config(**self.sizes, tie_word_embeddings=True)

    def world(self) -> World:
        """Return the catalog and its tokenizer."""
        return World.films() if self.items is None else World.invented(self.items, 32_000 if self.needs_gpu else 1_600)


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
_QWEN, _LLAMA = "Qwen--Qwen2.5-0.5B-Instruct.json", "meta-llama--Llama-3.2-1B-Instruct.json"
SHAPES = {
    "tiny": Shape(_sizes(1678, 160, 448, 3, 5, 5), 16, Lengths(longest_prompt=90), 300),  # heads of 32, for kernels
    "demo": Shape(_sizes(1678, 160, 448, 3, 8, 8), 128, Lengths(90, 45)),
    "20M-512": Shape(_20M, 8, Lengths(512, 160)),
    "20M-1024": Shape(_20M, 8, Lengths(1024, 200)),
    "0.5b": Shape(_QWEN, 48, Lengths(2048, 400), NUM_ITEMS),
    "0.5b-8": Shape(_QWEN, 8, Lengths(2048, 400), NUM_ITEMS),
    "0.5b-lists": Shape(_QWEN, 48, Lengths(), NUM_ITEMS),
    "1b": Shape(_LLAMA, 48, Lengths(2048, 400), NUM_ITEMS),
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


class _Plain(RankGRPOTrainer):
    """A RankGRPOTrainer without shared prompts."""

    def __init__(self, *arguments: Any, **options: Any):
        share, trainer_module.share_prompts = trainer_module.share_prompts, lambda model: "the benchmark's plain side"
        try:
            super().__init__(*arguments, **options)
        finally:
            trainer_module.share_prompts = share


_TRAINERS: dict[str, Any] = {"TRL": GRPOTrainer, "plain": _Plain}


def step_flops(config: Any, rollouts: tuple[list, list], head_rows: int) -> float:
    """Return the FLOPs that a step needs: forward and backward of the policy, and forward of the reference.

    A prompt counts once for its group. Two FLOPs for each weight of a matrix and token, plus the causal scores; the LM
    head, of `head_rows` rows, for completions only. What is computed again does not count.
    """
    prompts, completions = rollouts
    head = config.hidden_size // config.num_attention_heads
    per_layer = config.hidden_size * head * 2 * (config.num_attention_heads + config.num_key_value_heads)
    weights = config.num_hidden_layers * (per_layer + 3 * config.hidden_size * config.intermediate_size)
    distinct = [len(prompts[i]) for i in range(len(prompts)) if not i or prompts[i] is not prompts[i - 1]]
    written = sum(map(len, completions))
    pairs = sum(length**2 / 2 for length in distinct)
    pairs += sum(len(own) * (len(prompt) + len(own) / 2) for prompt, own in zip(prompts, completions, strict=True))
    forward = 2.0 * weights * (sum(distinct) + written) + 2.0 * head_rows * config.hidden_size * written
    forward += 4.0 * config.num_hidden_layers * config.num_attention_heads * head * pairs
    return 4 * forward


class Measured(NamedTuple):
    """The median seconds of a step and its parts, its FLOPs, and the peak in bytes (0: unknown)."""

    parts: dict[str, float]
    flops: float
    peak: int

    @property
    def seconds(self) -> float:
        """The seconds of a step, without what is spent on given rollouts."""
        return self.parts["step"]


def measure(
    folder: Path, shape: Shape, kinds: Sequence[str], steps: int, rounds: int, *, rollouts: bool
) -> dict[str, Measured]:
    """Return what a step takes with each of `KINDS` in `kinds`, for the model of this shape in `folder`.

    On a GPU, the peak is that of the whole training.
    """
    device, world, config = pick_device("auto"), shape.world(), shape.config()
    on_gpu = device == "cuda"
    world.tokenizer.save_pretrained(folder)
    given = [draw_rollouts(world, shape.lengths, shape.completions, i) for i in range(WARM_UP + steps)]
    longest = max(len(row) for _, lists in given for row in lists)
    options = {"max_steps": len(given), "per_device_train_batch_size": shape.completions, "use_cpu": not on_gpu}
    options |= {"bf16": on_gpu, "max_completion_length": longest}
    trie = (
        catalog_trie(world.catalog, world.tokenizer) if any(kind.startswith("constrained") for kind in kinds) else None
    )
    seconds: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    peaks: dict[str, int] = dict.fromkeys(kinds, 0)
    for _ in range(rounds):
        for kind in kinds:
            base, *how = kind.split("-")
            own: dict[str, Any] = options | {"gradient_checkpointing": "recomputed" in how}
            if base in ("shared", "constrained"):
                own["compile_layers"] = "compiled" in how
            if base == "constrained" and trie is not None:
                own["constraint"] = RolloutConstraint(world.catalog, trie, NUM_RANKS)
                own["max_completion_length"] = trie.longest(NUM_RANKS)
            before = torch.cuda.memory_allocated() if on_gpu else 0
            trainer, timers = make_trainer(
                _TRAINERS.get(base, RankGRPOTrainer), folder, world, None if rollouts else given, **own
            )
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            try:
                trainer.train()
            except torch.OutOfMemoryError:
                sys.stderr.write(f"{kind}: out of memory\n")
                del trainer, timers
                release_memory()
                continue
            seconds[kind] += timers.seconds[WARM_UP:]
            if on_gpu:
                peaks[kind] = max(peaks[kind], torch.cuda.max_memory_allocated() - before)
            elif not peaks[kind] and not rollouts:
                peaks[kind] = _cpu_peak(trainer, shape.completions)
            took = median(row["step"] for row in timers.seconds[WARM_UP:])
            sys.stderr.write(f"{kind}: {1000 * took:.1f} ms a step, peak {peaks[kind] / 2**30:.2f} GiB\n")
            del trainer, timers
            release_memory()  # trainers have reference cycles
    found = {}
    for kind in filter(seconds.get, kinds):
        head_rows = config.vocab_size if trie is None or not kind.startswith("constrained") else len(trie.alphabet)
        flops = median(step_flops(config, own, head_rows) for own in given[WARM_UP:])
        parts = {part: median(row.get(part, 0.0) for row in seconds[kind]) for part in seconds[kind][0]}
        found[kind] = Measured(parts, flops, peaks[kind])
    return found


def table(found: dict[str, Measured], peak: float | None) -> str:
    """Return the parts of the steps as a Markdown table; ratios are to the first row. Units: ms, GiB, %."""
    parts = list(next(iter(found.values())).parts)
    lines = [f"| trainer | {' | '.join(parts)} | ratio | peak | ratio | MFU |", "|---" * (len(parts) + 5) + "|"]
    first = next(iter(found.values()))
    for kind, own in found.items():
        cells = [kind, *(f"{own.parts.get(part, 0.0) * 1000:.1f}" for part in parts)]
        cells += [f"{own.seconds / first.seconds:.2f}", f"{own.peak / 2**30:.2f}"]
        cells += [f"{own.peak / first.peak:.2f}" if first.peak else "", f"{mfu(own, peak):.1f}" if peak else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def mfu(own: Measured, peak: float) -> float:
    """Return the model FLOPs utilization of a step in percent; `peak` in FLOP/s."""
    return 100 * own.flops / own.seconds / peak


def main() -> None:
    """Measure the given shapes, and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="+", choices=SHAPES)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["TRL", "plain", "shared"])
    parser.add_argument("--rollouts", action="store_true", help="let the trainers sample")
    parser.add_argument("--steps", type=int, default=4, help="steps of each trainer per round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    peak = peak_flops(pick_device("auto"), None)
    for name in options.shapes:
        shape = SHAPES[name]
        if shape.needs_gpu and not torch.cuda.is_available():
            raise SystemExit(f"the shape {name} needs a GPU")
        with tempfile.TemporaryDirectory() as path:
            weights = save_random_model(shape, Path(path))
            found = measure(Path(path), shape, options.kinds, options.steps, options.rounds, rollouts=options.rollouts)
        with_or_without = "with" if options.rollouts else "without"
        sys.stdout.write(
            f"{name}: {weights / 1e6:.1f}M weights, {shape.completions} lists, {with_or_without} rollouts\n"
        )
        sys.stdout.write(table(found, peak) + "\n\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
