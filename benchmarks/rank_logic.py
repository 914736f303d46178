"""What ranks cost: against a loop over tokens, and against TRL's own GRPOTrainer with a trivial reward, on a CPU.

Both trainers take the same steps on the same given rollouts with the embedded model's sizes; rounds alternate, and the
median step of each is compared. The peak memory is that of one forward and backward pass, counted tensor by tensor.

    python -m benchmarks.rank_logic
"""

import sys
import tempfile
import weakref
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from trl import GRPOTrainer

from benchmarks.side_by_side import GENERATIONS, TRAINERS, film_catalog, film_tokenizer, make_trainer
from benchmarks.timing import least_seconds
from convrec.rl.segmentation import segment_ranks
from convrec.training.embedded import make_model

COMPLETIONS, STEPS, ROUNDS = 128, 8, 4
SIZES = {"hidden_size": 160, "intermediate_size": 448, "num_layers": 3, "num_heads": 8, "num_key_value_heads": 8}


def loop_over_tokens(ids: torch.Tensor, mask: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the rank of each token, one token after the other, on lists, as a fast loop would."""
    ranks, newlines = [], counts.tolist()
    for row, kept in zip(ids.tolist(), mask.tolist(), strict=True):
        rank, out = 0, []
        for token, real in zip(row, kept, strict=True):
            out.append(rank if real else -1)
            rank += newlines[token] if real else 0
        ranks.append(out)
    return torch.tensor(ranks)


def segmentation() -> None:
    """Compare the segmentation of 128 completions of 320 tokens with the loop."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 1000, (128, 320), generator=draw)
    mask = (torch.arange(320)[None] < torch.randint(1, 321, (128, 1), generator=draw)).long()
    counts = (torch.rand(1000, generator=draw) < 0.1).long()
    if not torch.equal(segment_ranks(ids, mask, counts), loop_over_tokens(ids, mask, counts)):
        raise SystemExit("the two segmentations differ")

    loop = least_seconds(lambda: loop_over_tokens(ids, mask, counts), 10)
    vectorised = least_seconds(lambda: segment_ranks(ids, mask, counts), 1000)
    sys.stdout.write(f"segmentation, 128 x 320 tokens: {loop / vectorised:.0f} times as fast as a loop, same output\n")


class PeakBytes(TorchDispatchMode):
    """The most bytes that tensors made inside held at once."""

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


def update_peak(trainer: GRPOTrainer) -> int:
    """Return the peak bytes of one forward and backward pass."""
    trainer.state.global_step = 0
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    rows = [trainer.train_dataset[i // GENERATIONS] for i in range(COMPLETIONS)]
    batch = trainer._generate_and_score_completions(rows)
    trainer.model.zero_grad(set_to_none=True)
    with PeakBytes() as memory:
        trainer._compute_loss(trainer.model, batch).backward()
    return memory.peak


def main() -> None:
    """Print one line a comparison."""
    segmentation()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        catalog = film_catalog()
        tokenizer = film_tokenizer(catalog)
        make_model(tokenizer, **SIZES, seed=0).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        options = {"max_steps": STEPS, "logging_steps": STEPS, "per_device_train_batch_size": COMPLETIONS}
        options |= {"use_cpu": True, "bf16": False, "max_completion_length": 128}

        def trainer_of(kind: type) -> tuple[GRPOTrainer, Any]:
            return make_trainer(kind, folder, catalog, **options)

        seconds: dict[type, list[float]] = {kind: [] for kind in TRAINERS}
        for _ in range(ROUNDS):
            for kind, own in seconds.items():
                trainer, times = trainer_of(kind)
                trainer.train()
                own += times.seconds[2:]  # the first ones warm up
        theirs, ours = (median(values) for values in seconds.values())
        sys.stdout.write(f"step without rollouts: {ours / theirs:.3f} of TRL's time ({theirs:.2f} s)\n")
        peaks = [update_peak(trainer_of(kind)[0]) for kind in seconds]
        sys.stdout.write(f"peak memory of the update: {peaks[1] / peaks[0]:.3f} of TRL's ({peaks[0] / 1e6:.0f} MB)\n")


if __name__ == "__main__":
    main()
