"""Prefect's servers: whom the temporary one answers, and what errors of the shared one show."""

import base64
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from prefect.server.api.server import create_app
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_HOME,
    get_current_settings,
    temporary_settings,
)
from starlette.testclient import TestClient

from convrec.project.errors import InputError, NoSpace, Unavailable
from tasks.server import check_server, private_server, server_failure, ui_line


def test_the_temporary_server_answers_its_run_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    with temporary_settings(restore_defaults={PREFECT_API_URL}), private_server():
        login = base64.b64encode(PREFECT_API_AUTH_STRING.value().encode()).decode()
        client = TestClient(create_app(ephemeral=True, ignore_cache=True))  # without its services
        for path in ("/api/admin/version", "/api/admin/settings"):
            foreign = client.get(path, headers={"Origin": "https://page.example", "Host": "page.example"})
            assert foreign.status_code == 401
            assert client.get(path, headers={"Authorization": f"Basic {login}"}).status_code == 200
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}), private_server():
        assert PREFECT_API_AUTH_STRING.value() is None, "a shared server has its own users"


# As uvicorn starts the server: with handlers of its own, before it imports Prefect.
_SERVER = """
import logging, sqlite3, uvicorn
uvicorn.Config("", log_level="error")
import prefect.main
for name in ("prefect.server.services.scheduler", "uvicorn.error", "asyncio"):
    try:
        raise sqlite3.OperationalError("database is locked")
    except sqlite3.OperationalError:
        logging.getLogger(name).exception("Unexpected error in: scheduler")
logging.getLogger("uvicorn.access").info("GET")
"""


def test_an_error_that_the_temporary_server_survives_is_in_its_log_and_not_in_the_terminal(tmp_path):
    settings = {PREFECT_HOME: tmp_path}
    with temporary_settings(settings, restore_defaults={PREFECT_API_URL}), private_server():
        environment = {**os.environ, **get_current_settings().to_environment_variables(exclude_unset=True)}
    done = subprocess.run([sys.executable, "-c", _SERVER], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    log = (tmp_path / "server.log").read_text()
    assert log.count("sqlite3.OperationalError: database is locked") == 3 and "GET" not in log


def test_a_database_that_the_temporary_server_cannot_use_is_told_before_it_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.server._PATIENCE", 0.1)
    with temporary_settings({PREFECT_HOME: tmp_path}, restore_defaults={PREFECT_API_URL}):
        database = tmp_path / "prefect.db"
        with closing(sqlite3.connect(database, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(Unavailable, match=f"^{database}: database is locked; end the process"):
                private_server()
            other.execute("ROLLBACK")
            private_server()
        database.write_text("no database " * 100)
        with pytest.raises(InputError, match=f"^{database}: damaged .*; remove it"):
            private_server()
        monkeypatch.setattr("tasks.server._FREE", 2**60)
        with pytest.raises(NoSpace, match=f"^{tmp_path}: less than .* MB are free"):
            private_server()


def test_a_failure_of_the_server_is_reported_and_no_other_is():
    request = httpx.Request("POST", "http://127.0.0.1:8000/api/task_runs/")
    failed = httpx.HTTPStatusError("500", request=request, response=httpx.Response(500, request=request))
    error = RuntimeError("the state could not be set")
    error.__cause__ = failed
    assert str(server_failure(error)).startswith("Prefect's server failed (500; its database and server.log are in ")
    assert isinstance(server_failure(failed), Unavailable) and server_failure(ValueError("500")) is None


@pytest.mark.parametrize("url", ["http://me:s3cret@127.0.0.1:9/api", "ftp://me:s3cret@127.0.0.1:9/api"])
def test_an_error_does_not_show_the_password_of_the_shared_server(url):
    with (
        temporary_settings({PREFECT_API_URL: url}),
        pytest.raises((InputError, Unavailable), match="PREFECT_API_URL = '[a-z]+://[*]{3}@") as error,
    ):
        check_server()
    assert "s3cret" not in str(error.value)


def test_a_run_tells_where_the_ui_shows_it_or_how_to_have_one(monkeypatch):
    run = "0b8f4f3e-55b5-4d0e-9a51-3a5f0f2f8a11"
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", run)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:4200/api"}):
        assert ui_line() == f"in Prefect's UI: http://127.0.0.1:4200/runs/flow-run/{run}"
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        page, heading = ui_line().rpartition(" ")[2].split("#")
    text = (Path(__file__).parents[2] / page).read_text()
    assert heading in [line.strip("# ").lower().replace(" ", "-").replace("'", "") for line in text.splitlines()]
