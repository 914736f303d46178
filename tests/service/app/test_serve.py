"""`convrec serve` as a process, with a registry on SQLite whose champion moves."""

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from convrec.registry.moves import roll_back
from tests.registry.registered import promote_in_turn
from tests.service.app.process import QUESTION, Service, running_service
from tests.service.feedback.conftest import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_registry")]


@pytest.fixture(scope="module")
def service(client, folder) -> Iterator[Service]:
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlruns/mlflow.db"
    with running_service(folder, "--feedback", "none") as running:
        yield running


def _wait_for_version(service: Service, version: str) -> None:
    until(lambda: service.client.get("/ready").json()["versions"] == {"champion": version}, 60)


def _stop_with_requests_in_progress(service: Service) -> None:
    """Send SIGTERM: what was asked is answered, nothing more is accepted, and the process ends without an error."""
    with ThreadPoolExecutor(6) as pool:
        replies = [pool.submit(service.ask, n=15) for _ in range(6)]
        while service.metric("convrec_requests_inside") < 1:
            pass
        assert service.stop() == 0
    assert [reply.result().status_code for reply in replies] == [200] * 6
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.url}/health")


def test_promotion_and_rollback_under_load_lose_no_request(service, client, folder):
    """Every answer is that of the version that it names; another service on the same registry follows as well.

    That one is then stopped while it answers.
    """
    answers: list[tuple[str, str]] = []
    is_over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=service.url, timeout=30) as own:
            while not is_over.is_set():
                told = own.post("/recommend", json=QUESTION).raise_for_status().json()
                answers.append((told["version"], json.dumps(told["recommendations"])))

    with ThreadPoolExecutor(8) as pool, ExitStack() as cleanup, running_service(folder, "--feedback", "none") as other:
        cleanup.callback(is_over.set)
        asking = [pool.submit(ask) for _ in range(8)]
        _wait_for_version(other, "1")
        promote_in_turn(client, "2")
        _wait_for_version(service, "2")
        _wait_for_version(other, "2")
        expected = {"2": other.ask().json()["recommendations"]}
        roll_back(client, "ops", "the first one was better")
        _wait_for_version(service, "1")
        _wait_for_version(other, "1")
        expected["1"] = other.ask().json()["recommendations"]
        num = len(answers)
        while len(answers) < num + 20 and not any(one.done() for one in asking):
            time.sleep(0.01)
        is_over.set()
        for one in asking:
            one.result(60)
        _stop_with_requests_in_progress(other)
    assert expected["1"] != expected["2"]
    assert set(answers) == {(version, json.dumps(rows)) for version, rows in expected.items()}
    assert service.metric("convrec_model_load_failures_total") == 0


def test_metrics_and_logs_tell_what_was_answered(service):
    before = service.metric('convrec_answers_total{version="1"}')
    reply = service.client.post("/recommend", json=QUESTION, headers={"X-Request-ID": "mine-1"})
    assert reply.headers["X-Request-ID"] == reply.json()["request_id"] == "mine-1"
    assert [set(row) for row in reply.json()["recommendations"]] == [{"rank", "item_id", "title", "year"}] * 4
    assert service.metric('convrec_answers_total{version="1"}') == before + 1
    assert service.metric('convrec_model{role="champion",version="1"}') == 1
    line = json.loads(next(line for line in service.log.read_text().splitlines() if '"mine-1"' in line))
    assert line.items() >= {"path": "/recommend", "status": 200, "version": "1", "items": 4}.items()
    assert "heists" not in service.log.read_text(), "conversations are not logged"
