"""Prefect's servers: whom the temporary one answers, and what errors of the shared one show."""

import base64

import pytest
from prefect.server.api.server import create_app
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from starlette.testclient import TestClient

from convrec.project.errors import InputError, Unavailable
from tasks.server import check_server, private_server


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


@pytest.mark.parametrize("url", ["http://me:s3cret@127.0.0.1:9/api", "http://me:s3cret@[::1/api"])
def test_an_error_does_not_show_the_password_of_the_shared_server(url):
    with (
        temporary_settings({PREFECT_API_URL: url}),
        pytest.raises((InputError, Unavailable), match="PREFECT_API_URL = 'http://[*]{3}@") as error,
    ):
        check_server()
    assert "s3cret" not in str(error.value)
