import mlflow
import pytest

from tests.registry.registered import add_version, create_name


@pytest.fixture
def client(make_store, here) -> mlflow.MlflowClient:
    """A store with four versions, none of them the champion."""
    client = make_store(here)
    create_name(client)
    for _ in range(4):
        add_version(client)
    return client
