"""A version as MLflow's scoring server answers for it: what is no question is told in one line, without paths."""

import logging
from dataclasses import asdict
from pathlib import Path

import mlflow
import pytest
from fastapi.testclient import TestClient
from mlflow.pyfunc import scoring_server

import convrec
from convrec.registry.versions import model_signature
from convrec.service.recommender import Recommender
from tests.service.recommending import CATALOG, SETTINGS, save_model

ASK = {"inputs": "a film"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A version's pyfunc with an untrained model."""
    folder = tmp_path_factory.mktemp("version")
    CATALOG.to_frame().to_parquet(folder / "catalog.parquet")
    mlflow.pyfunc.save_model(
        folder / "version",
        python_model=str(Path(convrec.__file__).parent / "service" / "pyfunc_model.py"),
        artifacts={"model": str(save_model(folder / "model")), "catalog": str(folder / "catalog.parquet")},
        model_config=asdict(SETTINGS),
        signature=model_signature(),
        pip_requirements=[],
    )
    return mlflow.pyfunc.load_model(str(folder / "version"))


@pytest.fixture(scope="module")
def client(model) -> TestClient:
    return TestClient(scoring_server.init(model))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"inputs": null}', "inputs: None is not a conversation; give a text, a list of messages"),
        (b'{"inputs": 5}', "inputs: 5 is not a conversation"),
        (b'{"inputs": NaN}', "inputs: nan is not a conversation"),
        (b'{"inputs": {"conversation": null}}', "inputs: None is not a conversation"),
        (b'{"messages": null}', "inputs: None is not a conversation"),
        (b'{"inputs": [null]}', "conversation 1: None is neither text nor a list of messages"),
        (b'{"inputs": "a \\ud800"}', "contains a NUL, or text that is not UTF-8"),
        (b'{"inputs": "x", "params": {"n": null}}', "n = None: give a whole number from 1"),
        (b'{"inputs": "x", "params": {"n": "3"}}', "for 'n': long"),
    ],
)  # fmt: skip
def test_what_is_no_question_is_told_in_one_message(client, body, message):
    reply = client.post("/invocations", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400 and message in reply.json()["message"]
    assert "stack_trace" not in reply.json() and "/" not in reply.json()["message"]


@pytest.mark.parametrize("params", [{"n": 2}, {"n": 2, "deny": [], "allow": []}])
def test_known_params_are_taken(client, params):
    expected = client.post("/invocations", json={**ASK, "params": {"n": 2}}).json()["predictions"]
    assert len(expected) == 2
    assert client.post("/invocations", json={**ASK, "params": params}).json()["predictions"] == expected
    question = {"messages": [{"role": "user", "content": "a film"}], **params}
    assert client.post("/invocations", json=question).json() == expected


def test_a_defect_is_told_without_its_traceback(client, monkeypatch, caplog):
    monkeypatch.setattr(Recommender, "recommend", lambda *_, **__: 1 / 0)
    with caplog.at_level(logging.ERROR):
        reply = client.post("/invocations", json=ASK)
    assert reply.status_code == 500 and "the model failed; see the server's log" in reply.json()["message"]
    assert "stack_trace" not in reply.json() and "ZeroDivisionError" in caplog.text
