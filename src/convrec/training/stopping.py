"""Stops a training after a complete step: at a given step, or after a signal."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from convrec.project.errors import Stopped

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopCallback(TrainerCallback):
    """Stops a training at a step before the end of its schedule, and saves a checkpoint there."""

    def __init__(self, step: int):
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step >= self._step:
            control.should_training_stop = control.should_save = True


class _SignalCallback(TrainerCallback):
    """Stops a training with a checkpoint once any process has received a signal, at a step divisible by `every`."""

    def __init__(self, every: int) -> None:
        self._every = every
        self.received: list[int] = []
        self.has_stopped = False

    def handle_signal(self, number: int, _frame: Any) -> None:
        """Handle a signal; a second Ctrl-C ends the process at once, without a checkpoint."""
        if number == signal.SIGINT and number in self.received:
            raise KeyboardInterrupt
        if not self.received:
            logger.info("%s: the training ends with a checkpoint", signal.Signals(number).name)
        self.received.append(number)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        stopping = bool(self.received)
        if torch.distributed.is_initialized():
            # All processes must stop after the same step, so they agree here whether any of them got a signal.
            by_any = torch.tensor(int(stopping), device=args.device)
            torch.distributed.all_reduce(by_any, torch.distributed.ReduceOp.MAX)
            stopping = bool(by_any)
        if stopping and state.global_step % self._every == 0:
            control.should_training_stop = control.should_save = self.has_stopped = True


@contextmanager
def stoppable(trainer: Trainer, every: int = 1) -> Iterator[None]:
    """Make SIGTERM and Ctrl-C end the training after its current step, with a checkpoint.

    If several steps share their rollouts, `every` is their number: training ends after the last of them, because a
    checkpoint holds no rollouts. Raises `Stopped` at the end of the block if a signal came. Outside the block the
    signals end the process as usual.
    """
    callback = _SignalCallback(every)
    trainer.add_callback(callback)
    before = {number: signal.signal(number, callback.handle_signal) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        trainer.remove_callback(callback)
    if callback.received or callback.has_stopped:
        message = f"stopped at step {trainer.state.global_step} of {trainer.state.max_steps}; start again to go on"
        raise Stopped(message, callback.received[0] if callback.received else signal.SIGTERM)
