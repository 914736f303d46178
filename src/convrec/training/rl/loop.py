"""Parts of the training loop: an order of rows that can be resumed, and timing."""

import time
from collections.abc import Iterator
from typing import Any

from transformers import TrainerCallback
from trl.trainer.utils import RepeatSampler


class EpochSampler(RepeatSampler):
    """TRL's sampler with a new seed for each epoch, so that a resumed epoch keeps its order.

    It reads the epoch from the trainer, because Accelerate's wrappers for several processes do not pass on `set_epoch`.
    """

    seed: Any
    trainer: Any

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            self.generator.manual_seed(self.seed + int(self.trainer.state.epoch or 0))
        yield from super().__iter__()


class StepClock(TrainerCallback):
    """Logs the seconds of each part of a step, and the tokens per second over all processes."""

    def __init__(self, trainer: Any):
        self._trainer, self._start = trainer, 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._start = time.perf_counter()
        self._trainer.seconds.clear()
        self._trainer.tokens = 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        total, parts, trainer = time.perf_counter() - self._start, self._trainer.seconds, self._trainer
        parts["update"] = total - sum(parts.values())
        trainer.record_metrics({f"seconds/{name}": value for name, value in parts.items()})
        trainer.record_metrics({"tokens_per_second": trainer.tokens * trainer.accelerator.num_processes / total})
