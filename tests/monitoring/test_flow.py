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
    command = [
        sys.executable,
        "-m",
        "prefect",
        "server",
        "start",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--no-ui",
    ]
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


def _run(project: Path, server: str, *command: str, **variables: str) -> subprocess.CompletedProcess:
    foreign = ("MLFLOW_", "PREFECT_", "DVC_", "CONVREC_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**kept, "PREFECT_API_URL": server, "PATH": path, **variables}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=project, env=environment, capture_output=True, text=True, timeout=300
    )


def _automations(server: str) -> list[dict]:
    found = requests.post(f"{server}/automations/filter", json={}, timeout=30).json()
    return [automation for automation in found if "alarm" in automation["name"]]


def test_an_alarm_is_an_event_that_calls_the_webhook_and_may_retrain(project, prefect_server, webhook):
    address, received = webhook
    deployed = _run(project, prefect_server, "flows.deploy", CONVREC_ALARM_WEBHOOK=address)
    assert deployed.returncode == 0, deployed.stdout[-2000:] + deployed.stderr[-2000:]
    (automation,) = _automations(prefect_server)
    assert [action["type"] for action in automation["actions"]] == ["call-webhook"]

    quiet = _run(project, prefect_server, "flows.monitor", "--until", "2021-01-01")
    assert quiet.returncode == 0 and "not enough data" in quiet.stderr + quiet.stdout, quiet.stderr[-3000:]
    alarmed = _run(project, prefect_server, "flows.monitor", "--until", f"{end_of(CHANGE):%Y-%m-%d}")
    assert alarmed.returncode == 3, alarmed.stderr[-3000:]
    assert "Report: runs/monitoring.html" in alarmed.stdout and (project / "runs" / "monitoring.html").is_file()
    kind, payload = received.get(timeout=60)
    assert kind == "application/json" and payload["until"].startswith("2022-04-18")
    assert "acceptance" in {alarm["name"] for alarm in payload["alarms"]} and "acceptance" in payload["summary"]
    run = requests.get(f"{prefect_server}/flow_runs/{payload['flow_run']}", timeout=30).json()
    assert run["name"].startswith("monitor embedded") and run["state_type"] == "COMPLETED"
    artifacts = requests.post(f"{prefect_server}/artifacts/filter", json={}, timeout=30).json()
    assert any(one["key"] == "monitoring" and "| acceptance | **alarm** |" in one["data"] for one in artifacts)
    assert received.empty(), "one call for one alarm"

    set_params(project, {"alarm": {"refresh": True}}, "monitoring.yaml")
    assert _run(project, prefect_server, "flows.deploy").returncode == 0
    (automation,) = _automations(prefect_server)
    refresh = requests.get(f"{prefect_server}/deployments/name/refresh/monthly", timeout=30).json()
    assert [(one["type"], one["deployment_id"]) for one in automation["actions"]] == [("run-deployment", refresh["id"])]


def test_a_block_that_is_not_there_is_told_before_anything_is_deployed(project, prefect_server):
    set_params(project, {"alarm": {"webhook": "nosuch", "refresh": False}}, "monitoring.yaml")
    missing = _run(project, prefect_server, "flows.deploy")
    assert missing.returncode == 2 and missing.stderr.count("\n") == 1
    assert "monitoring.yaml: alarm.webhook = 'nosuch': Prefect has no such webhook block" in missing.stderr
    both = _run(project, prefect_server, "flows.deploy", CONVREC_ALARM_WEBHOOK="http://127.0.0.1:9")
    assert both.returncode == 2 and "CONVREC_ALARM_WEBHOOK and alarm.webhook = 'nosuch'" in both.stderr
