"""The flow `monitor` on a real Prefect server: its alarm is an event, with the checks."""

import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
import requests

from tests.servers import Servers, running, wait_for
from tests.service.monitoring.conftest import CHANGE, end_of
from tests.small_project import SHRUNK, commit, make_project, own_environment, set_params

pytestmark = pytest.mark.nightly


@pytest.fixture
def prefect_server() -> Iterator[Servers]:
    with running("postgres", "prefect") as servers:
        yield servers


def test_an_alarm_is_an_event_with_the_checks(prefect_server, watched_project, tmp_path):
    project = make_project(tmp_path / "project")
    set_params(project, SHRUNK)
    commit(project, "start")
    shutil.copytree(watched_project / "feedback", project / "feedback")
    code = f"from flows.monitor import monitor; print(monitor('{end_of(CHANGE):%Y-%m-%d}')['report'])"
    known = {name: value for name, value in prefect_server.clients().items() if name.startswith("PREFECT_")}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project,
        env={**own_environment(), **known},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "runs/monitoring.html" in ended.stdout and (project / "runs" / "monitoring.html").is_file()

    def ask(path: str, **values: object) -> dict:
        auth = "team", prefect_server.secrets["PREFECT_PASSWORD"]
        url = f"{prefect_server.address('prefect')}/api/{path}"
        return requests.request("post" if values else "get", url, json=values, auth=auth, timeout=30).json()

    wanted = {"event": {"name": ["convrec.monitor.alarm"]}}
    (event,) = wait_for(lambda: ask("events/filter", filter=wanted)["events"], 120, "the event")
    payload = event["payload"]
    assert payload["until"].startswith("2022-04-18") and "acceptance" in payload["summary"]
    assert "acceptance" in {alarm["name"] for alarm in payload["alarms"]}
    run = ask(f"flow_runs/{payload['flow_run']}")
    assert run["name"].startswith("monitor embedded") and run["state_type"] == "COMPLETED"
    found = [one["data"] for one in ask("artifacts/filter", limit=100) if one["key"] == "monitoring"]
    assert any("- acceptance: alarm: " in data for data in found)
