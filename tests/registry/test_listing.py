"""`convrec registry list` and `prune`."""

import json

import pytest
from mlflow.exceptions import MlflowException

from convrec.registry import tracking
from convrec.registry.listing import plan, prune
from convrec.registry.versions import MODEL_NAME, read_aliases
from tests.registry.registered import add_version, promote_in_turn


def test_what_prune_keeps():
    versions = [
        ("6", None),
        ("5", "refused"),
        ("4", "awaiting approval"),
        ("3", "promoted"),
        ("2", "refused"),
        ("1", None),
    ]
    fates = plan(versions, {"champion": "3", "previous": "1", "challenger": "6", "blue": "1"}, keep=2)
    assert [(fate.version, fate.stays) for fate in fates] == [
        ("6", True), ("5", True), ("4", True), ("3", True), ("2", False), ("1", True),
    ]  # fmt: skip
    assert [fate.why for fate in fates[2:]] == [
        "awaits approval",
        "is the champion",
        "is older than the newest 2, and has no alias",
        "is the blue and previous",
    ]


def test_prune_removes_the_logged_model_of_what_goes(client):
    models = [client.create_logged_model(tracking.connect(), name="recommender").model_id for _ in range(2)]
    for model in models:
        client.create_model_version(MODEL_NAME, source=f"models:/{model}")
    add_version(client)
    prune(2, "prune", remove=True)
    with pytest.raises(MlflowException, match="not found"):
        client.get_logged_model(models[0])
    assert client.get_logged_model(models[1]).model_id == models[1]


def test_prune_says_first_and_removes_then(client, cli):
    promote_in_turn(client, "1", "2")
    status, out, _ = cli("registry", "prune", "--keep", "1")
    assert status == 0 and "would go" in out and "Dry run: nothing was removed" in out
    assert len(client.search_model_versions(f"name = '{MODEL_NAME}'")) == 4
    removed = json.loads(cli("registry", "prune", "--keep", "1", "--yes", "--json").out)
    assert [row["version"] for row in removed if not row["stays"]] == ["3"]
    left = {str(version.version) for version in client.search_model_versions(f"name = '{MODEL_NAME}'")}
    assert left == {"1", "2", "4"} and read_aliases(client) == {"champion": "2", "previous": "1"}
    assert cli("registry", "prune", "--keep", "0").status == 2


def test_an_empty_registry_is_told_as_such(client, cli):
    client.delete_registered_model(MODEL_NAME)
    for words in (["prune", "--keep", "1"], ["prune", "--keep", "1", "--yes"], ["list"]):
        status, output, _ = cli("registry", *words)
        assert status == 0 and output.startswith("No version is registered") and output.count("\n") == 1
