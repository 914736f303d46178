from pathlib import Path

import pytest

from tests.rl.tiny import make_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """The folder of the tiny model."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
