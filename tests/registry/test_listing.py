"""`convrec registry list` and `prune`."""

import json

import mlflow
import pytest
from mlflow.exceptions import MlflowException

from convrec.registry import tracking
from convrec.registry.promote import prune
from convrec.registry.versions import MODEL_NAME, read_aliases
from tests.registry.registered import add_version, promote_in_turn


def test_prune_removes_the_logged_model_of_what_goes(client):
    models = [client.create_logged_model(tracking.connect(), name="recommender").model_id for _ in range(2)]
    for model in models:
        client.create_model_version(MODEL_NAME, source=f"models:/{model}")
    add_version(client)
    prune(2, "prune", remove=True)
    with pytest.raises(MlflowException, match="not found"):
        client.get_logged_model(models[0])
    assert client.get_logged_model(models[1]).model_id == models[1]


def test_prune_says_first_and_removes_then(client, cli, monkeypatch):
    promote_in_turn(client, "1", "2")
    client.set_model_version_tag(MODEL_NAME, "3", "promotion.status", "awaiting approval")
    add_version(client)
    with monkeypatch.context() as reader:  # an account that may not write
        reader.delattr(mlflow.MlflowClient, "create_registered_model")
        assert cli("registry", "prune", "--keep", "1").out == "Would be removed with --yes: 4\n"
    assert len(client.search_model_versions(f"name = '{MODEL_NAME}'")) == 5
    assert json.loads(cli("registry", "prune", "--keep", "1", "--yes", "--json").out) == ["4"]
    left = {str(version.version) for version in client.search_model_versions(f"name = '{MODEL_NAME}'")}
    assert left == {"1", "2", "3", "5"} and read_aliases(client) == {"champion": "2", "previous": "1"}
    assert cli("registry", "prune", "--keep", "0").status == 2


def test_an_empty_registry_is_told_as_such(client, cli):
    client.delete_registered_model(MODEL_NAME)
    assert cli("registry", "prune", "--keep", "1")[:2] == (0, "No version to remove.\n")
    status, output, _ = cli("registry", "list")
    assert status == 0 and output.startswith("No version is registered")
