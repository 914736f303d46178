"""What a signal does to a training, and that its processes stop after the same step."""

import signal
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerControl

from convrec.project.errors import Stopped
from convrec.training.stopping import stoppable


class _Steps:
    """Stands for a trainer in its loop: it tells its callbacks of each step."""

    def __init__(self) -> None:
        self.state, self.callbacks = SimpleNamespace(global_step=0, max_steps=9), []
        self.add_callback, self.remove_callback = self.callbacks.append, self.callbacks.remove

    def step(self) -> TrainerControl:
        self.state.global_step += 1
        control = TrainerControl()
        for callback in self.callbacks:
            callback.on_step_end(SimpleNamespace(device="cpu"), self.state, control)
        return control


@pytest.fixture
def others(monkeypatch) -> list:
    """What the other processes of a launch do in each reduction, in order; then they do nothing."""
    deeds: list = []

    def all_reduce(flag: torch.Tensor, operation: object) -> None:
        assert operation == torch.distributed.ReduceOp.MAX
        if deeds:
            deeds.pop(0)(flag)

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    return deeds


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_training_with_a_checkpoint_after_a_rollout_s_last_step(number, status):
    trainer = _Steps()
    with pytest.raises(Stopped, match="stopped at step 4 of 9") as stopped, stoppable(trainer, every=2):
        assert not trainer.step().should_training_stop and not trainer.step().should_save
        signal.raise_signal(number)
        assert not trainer.step().should_training_stop
        control = trainer.step()
        assert control.should_training_stop and control.should_save
    assert not trainer.callbacks and stopped.value.status == status


def test_a_second_ctrl_c_ends_the_process_at_once():
    with pytest.raises(KeyboardInterrupt), stoppable(_Steps()):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_a_signal_that_comes_while_the_processes_agree_stops_none_of_them_before_the_next_step(others):
    trainer = _Steps()
    others.append(lambda flag: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Stopped, match="stopped at step 2"), stoppable(trainer):
        assert not trainer.step().should_training_stop
        assert trainer.step().should_training_stop


def test_a_process_that_got_no_signal_stops_with_the_others(others):
    trainer = _Steps()
    others.append(lambda flag: flag.fill_(1))
    with pytest.raises(Stopped, match="stopped at step 1"), stoppable(trainer):
        assert trainer.step().should_training_stop
