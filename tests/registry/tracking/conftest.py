import shutil
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest

from convrec.registry import tracking
from convrec.registry.tracking import journal
from tests.registry.tracking.server import TrackingServer

ENVIRONMENT = ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", tracking.PARENT_VARIABLE)


@pytest.fixture(scope="module")
def server(empty_store, tmp_path_factory) -> Iterator[TrackingServer]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_store, folder)
    made = TrackingServer(folder)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def project(here, monkeypatch) -> Path:
    """An empty project, entered; what waits for a lost server waits shortly."""
    for variable in ENVIRONMENT:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    for name, seconds in {"_LINGER": 0.05, "_FLUSH": 10.0}.items():
        monkeypatch.setattr(journal, name, seconds)
    return here


@pytest.fixture
def client(server, project, monkeypatch) -> mlflow.MlflowClient:
    """A client of the real server, which the project records into."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    return mlflow.MlflowClient(server.uri)
