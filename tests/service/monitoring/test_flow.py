"""The flow `monitor` on a real Prefect server: its alarm is an event, with the checks."""

import shutil
import sys

import pytest

from tests.servers import running, wait_for
from tests.service.monitoring.conftest import CHANGE, end_of
from tests.small_project import SHRUNK, commit, make_project, run_in, set_params

pytestmark = pytest.mark.nightly


def test_an_alarm_is_an_event_with_the_checks(watched_project, tmp_path):
    project = make_project(tmp_path / "project")
    set_params(project, SHRUNK)
    commit(project, "start")
    shutil.copytree(watched_project / "feedback", project / "feedback")
    code = f"from flows.monitor import monitor; print(monitor('{end_of(CHANGE):%Y-%m-%d}')['report'])"
    with running("postgres", "prefect") as servers:
        known = {name: value for name, value in servers.clients().items() if name.startswith("PREFECT_")}
        printed = run_in(project, sys.executable, "-c", code, timeout=600, **known).stdout
        assert "runs/monitoring.html" in printed and (project / "runs" / "monitoring.html").is_file()

        ask, wanted = servers.prefect, {"event": {"name": ["convrec.monitor.alarm"]}}
        (event,) = wait_for(lambda: ask("events/filter", filter=wanted)["events"], 120, "the event")
        payload = event["payload"]
        assert payload["until"].startswith("2022-04-18") and "acceptance" in payload["summary"]
        assert "acceptance" in {alarm["name"] for alarm in payload["alarms"]}
        run = ask(f"flow_runs/{payload['flow_run']}")
        assert run["name"].startswith("monitor embedded") and run["state_type"] == "COMPLETED"
        found = [one["data"] for one in ask("artifacts/filter", limit=100) if one["key"] == "monitoring"]
        assert any("- acceptance: alarm: " in data for data in found)
