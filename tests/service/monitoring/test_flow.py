"""The flow `monitor` on a real Prefect server: its alarm reaches a webhook, and its automation follows the settings."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import requests
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from convrec.project.errors import InputError
from convrec.service.monitoring.settings import Alarm
from flows.deploy import ALARM_NAME, WEBHOOK_VARIABLE, alarm_block, make_alarm
from tests.servers import Servers, running
from tests.service.monitoring.conftest import CHANGE, end_of
from tests.small_project import SHRUNK, commit, make_project, own_environment, set_params

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def webhook() -> Iterator[tuple[str, Queue]]:
    """A receiver of webhooks: its address, and what was posted to it."""
    received: Queue = Queue()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.put((self.headers["content-type"], json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/alarm", received
    server.shutdown()


@pytest.fixture(scope="module")
def prefect_server() -> Iterator[Servers]:
    """A Prefect server with its triggers and actions."""
    with running("postgres", "prefect") as servers:
        yield servers


@pytest.fixture(scope="module")
def project(watched_project, tmp_path_factory) -> Path:
    """A small project with the feedback of users who change."""
    folder = make_project(tmp_path_factory.mktemp("monitored") / "project")
    set_params(folder, SHRUNK)
    commit(folder, "start")
    shutil.copytree(watched_project / "feedback", folder / "feedback")
    return folder


@pytest.fixture
def here(project, prefect_server, monkeypatch) -> Iterator[Servers]:
    """The project, entered, with the server."""
    monkeypatch.chdir(project)
    monkeypatch.delenv(WEBHOOK_VARIABLE, raising=False)
    known = prefect_server.clients()
    with temporary_settings({setting: known[setting.name] for setting in (PREFECT_API_URL, PREFECT_API_AUTH_STRING)}):
        yield prefect_server


def _ask(servers: Servers, path: str) -> Any:
    auth = "team", servers.secrets["PREFECT_PASSWORD"]
    method = "post" if path.endswith("/filter") else "get"
    return requests.request(method, f"{servers.address('prefect')}/api/{path}", json={}, auth=auth, timeout=30).json()


def _automations(servers: Servers) -> list[dict]:
    return [found for found in _ask(servers, "automations/filter") if found["name"] == ALARM_NAME]


def test_an_alarm_is_an_event_that_calls_the_webhook(here, webhook, monkeypatch):
    address, received = webhook
    monkeypatch.setenv(WEBHOOK_VARIABLE, address)
    settings = Alarm(webhook=None, refresh=False)
    make_alarm(settings, alarm_block(settings))
    (automation,) = _automations(here)
    assert [action["type"] for action in automation["actions"]] == ["call-webhook"]
    command = [sys.executable, "-m", "flows.monitor", "--until", f"{end_of(CHANGE):%Y-%m-%d}"]
    known = {name: value for name, value in here.clients().items() if name.startswith("PREFECT_")}
    ended = subprocess.run(
        command, env={**own_environment(), **known}, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 3, ended.stderr[-3000:]
    assert "Report: runs/monitoring.html" in ended.stdout and Path("runs/monitoring.html").is_file()
    kind, payload = received.get(timeout=120)
    assert kind == "application/json" and payload["until"].startswith("2022-04-18")
    assert "acceptance" in {alarm["name"] for alarm in payload["alarms"]} and "acceptance" in payload["summary"]
    run = _ask(here, f"flow_runs/{payload['flow_run']}")
    assert run["name"].startswith("monitor embedded") and run["state_type"] == "COMPLETED"
    found = [one["data"] for one in _ask(here, "artifacts/filter") if one["key"] == "monitoring"]
    assert any("| acceptance | **alarm** |" in data for data in found)
    assert received.empty(), "one call for one alarm"


def test_the_automation_follows_the_settings(here):
    with get_client(sync_client=True) as client:
        refresh = client.create_deployment(client.create_flow_from_name("refresh"), "monthly")
    make_alarm(Alarm(webhook=None, refresh=True), None)
    (automation,) = _automations(here)
    assert [(one["type"], one["deployment_id"]) for one in automation["actions"]] == [("run-deployment", str(refresh))]
    make_alarm(Alarm(webhook=None, refresh=False), None)
    assert not _automations(here)


def test_a_block_that_is_not_there_is_told(here, monkeypatch):
    settings = Alarm(webhook="nosuch", refresh=False)
    with pytest.raises(InputError, match="alarm.webhook = 'nosuch': Prefect has no such webhook block"):
        alarm_block(settings)
    monkeypatch.setenv(WEBHOOK_VARIABLE, "http://127.0.0.1:9")
    with pytest.raises(InputError, match="give one of the two"):
        alarm_block(settings)
