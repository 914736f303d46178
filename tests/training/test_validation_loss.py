"""The loss on validation demonstrations during SFT."""

from pathlib import Path

import pytest
from datasets import Dataset

from convrec.training.callbacks import HistoryCallback, read_history
from tests.training.tiny_sft import STEPS, make_tiny, train_tiny

ROWS = Dataset.from_dict({"text": ["a film please", "films please"] * 2})


def _losses(folder: Path, name: str) -> dict[int, float]:
    return {int(row["step"]): row[name] for row in read_history(folder / "history.jsonl") if name in row}


def _train(folder: Path, **options) -> Path:
    folder.mkdir()
    history = HistoryCallback(folder / "history.jsonl", lambda *_: None)
    return train_tiny(make_tiny(), folder, callbacks=[history], **options)


def test_it_is_measured_after_each_epoch_and_does_not_change_the_training(tmp_path):
    plain = _train(tmp_path / "plain")
    measured = _train(tmp_path / "measured", validation=ROWS)
    assert (measured / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    assert list(_losses(tmp_path / "measured", "eval_loss")) == [STEPS // 2, STEPS]
    assert not _losses(tmp_path / "plain", "eval_loss")


def test_it_equals_the_training_loss_on_the_same_rows(tmp_path):
    _train(tmp_path / "fixed", rows=ROWS, validation=ROWS, learning_rate=0.0)
    losses, found = (_losses(tmp_path / "fixed", name) for name in ("loss", "eval_loss"))
    assert found == pytest.approx(losses, rel=1e-6) and len(found) == 2
