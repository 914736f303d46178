from itertools import count
from pathlib import Path

import pytest

from tests.training.rl.tiny import make_tiny_model, tiny_trainer


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """The folder of the tiny model."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def item_model(tmp_path_factory) -> Path:
    """The folder of the tiny model with item tokens."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "items", has_item_tokens=True)


@pytest.fixture
def make(tiny_model, tmp_path):
    """Makes trainers of the tiny model, each in a folder of its own unless one is named."""
    folders = (tmp_path / f"out{number}" for number in count())
    return lambda steps=1, folder=None, **own: tiny_trainer(tiny_model, folder or next(folders), steps, **own)
