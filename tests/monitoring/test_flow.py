"""The flow `monitor` on a real Prefect server: its alarm reaches a webhook, and its automation follows the settings."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue

import pytest
import requests
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from convrec.errors import InputError
from convrec.monitoring.settings import Alarm
from flows.deploy import ALARM_NAME, WEBHOOK_VARIABLE, alarm_block, make_alarm
from tests.monitoring.conftest import CHANGE, end_of
from tests.project import SHRUNK, commit, make_project, set_params

pytestmark = pytest.mark.pipeline


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
def prefect_server(tmp_path_factory) -> Iterator[str]:
    """The address of a Prefect server with its triggers and actions."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = tmp_path_factory.mktemp("prefect")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment = {**kept, "PREFECT_HOME": str(home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    options = ("--host", "127.0.0.1", "--port", str(port), "--no-ui")
    command = [sys.executable, "-m", "prefect", "server", "start", *options]
    address = f"http://127.0.0.1:{port}/api"
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        for _ in range(300):
            try:
                if requests.get(f"{address}/health", timeout=5).ok:
                    break
            except requests.ConnectionError:
                time.sleep(0.3)
        else:
            pytest.fail((home / "log").read_text()[-3000:])
        yield address
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def project(watched_project, tmp_path_factory) -> Path:
    """A small project with the feedback of users who change."""
    folder = make_project(tmp_path_factory.mktemp("monitored") / "project")
    set_params(folder, SHRUNK)
    commit(folder, "start")
    shutil.copytree(watched_project / "feedback", folder / "feedback")
    return folder


@pytest.fixture
def here(project, prefect_server, monkeypatch) -> Iterator[str]:
    """The project, entered, with the server; the server's address."""
    monkeypatch.chdir(project)
    monkeypatch.delenv(WEBHOOK_VARIABLE, raising=False)
    with temporary_settings({PREFECT_API_URL: prefect_server}):
        yield prefect_server


def _run_flow(server: str, until: str) -> subprocess.CompletedProcess:
    foreign = ("MLFLOW_", "PREFECT_", "DVC_", "CONVREC_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "flows.monitor", "--until", until]
    environment = {**kept, "PREFECT_API_URL": server, "PATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def _automations(server: str) -> list[dict]:
    found = requests.post(f"{server}/automations/filter", json={}, timeout=30).json()
    return [automation for automation in found if automation["name"] == ALARM_NAME]


def test_an_alarm_is_an_event_that_calls_the_webhook(here, webhook, monkeypatch):
    address, received = webhook
    monkeypatch.setenv(WEBHOOK_VARIABLE, address)
    settings = Alarm(webhook=None, refresh=False)
    make_alarm(settings, alarm_block(settings))
    (automation,) = _automations(here)
    assert [action["type"] for action in automation["actions"]] == ["call-webhook"]
    ended = _run_flow(here, f"{end_of(CHANGE):%Y-%m-%d}")
    assert ended.returncode == 3, ended.stderr[-3000:]
    assert "Report: runs/monitoring.html" in ended.stdout and Path("runs/monitoring.html").is_file()
    kind, payload = received.get(timeout=60)
    assert kind == "application/json" and payload["until"].startswith("2022-04-18")
    assert "acceptance" in {alarm["name"] for alarm in payload["alarms"]} and "acceptance" in payload["summary"]
    run = requests.get(f"{here}/flow_runs/{payload['flow_run']}", timeout=30).json()
    assert run["name"].startswith("monitor embedded") and run["state_type"] == "COMPLETED"
    artifacts = requests.post(f"{here}/artifacts/filter", json={}, timeout=30).json()
    assert any(one["key"] == "monitoring" and "| acceptance | **alarm** |" in one["data"] for one in artifacts)
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
