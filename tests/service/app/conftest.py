"""A registry on SQLite, for the tests of services that follow it."""

from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest

from tests.registry.registered import make_workspace, promote_in_turn, register_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        made = make_workspace(tmp_path_factory.mktemp("registry"))
        patch.chdir(made)
        yield made


@pytest.fixture(scope="module")
def client(make_store, folder) -> mlflow.MlflowClient:
    """Two versions; the first is the champion."""
    client = make_store(folder)
    for seed in (1, 2):
        register_model(client, folder / f"version{seed}", seed)
    promote_in_turn(client, "1")
    return client


@pytest.fixture
def in_registry(own_store, folder, monkeypatch) -> None:
    """Let a test record into this registry."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlruns/mlflow.db")
