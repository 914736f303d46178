"""The servers of docker-compose.yml: who is let in, what is where, what a restart keeps."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import boto3
import psutil
import pytest
import requests
from mlflow import MlflowClient

from convrec.service.feedback import FeedbackStore
from tests.servers import HOST, Servers, query, wait_for
from tests.small_project import ROOT

WEIGHTS = bytes(9 * 2**20)  # sent in parts


@pytest.fixture
def client(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """A client of MLflow with the variables of a user alone."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    for name, value in servers.clients().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    return MlflowClient(servers.address("mlflow"))


@pytest.mark.parametrize("auth", [None, ("team", "wrong"), ("admin", "password1234")])
def test_mlflow_and_prefect_refuse_strangers(servers, auth):
    url = f"{servers.address('mlflow')}/api/2.0/mlflow/experiments/create"
    assert requests.post(url, json={"name": "stranger"}, auth=auth, timeout=30).status_code == 401
    assert query(servers, "mlflow", "SELECT name FROM experiments WHERE name = 'stranger'") == []
    url = f"{servers.address('prefect')}/api/flows/"
    assert requests.post(url, json={"name": "stranger"}, auth=auth, timeout=30).status_code == 401
    assert servers.prefect("flows/filter", flows={"name": {"any_": ["stranger"]}}) == []


@pytest.mark.parametrize("location", ["file://{0}", "{0}", "file:{0}", "../outside", "FILE://{0}"])
def test_mlflow_neither_writes_nor_reads_files_of_its_machine(servers, location, request):
    """Whoever may create an experiment says where its artifacts are, such as where the server's user can write."""
    outside, url, team = servers.folder / "outside", servers.address("mlflow"), requests.Session()
    outside.mkdir(exist_ok=True)
    (outside / "secret.txt").write_text("a secret")
    team.auth = "team", servers.secrets["MLFLOW_TEAM_PASSWORD"]
    values = {"name": request.node.name, "artifact_location": location.format(outside)}
    made = team.post(f"{url}/api/2.0/mlflow/experiments/create", json=values, timeout=30)
    assert made.ok, made.text
    experiment = made.json()["experiment_id"]
    values = {"experiment_id": experiment, "start_time": 1}
    run = team.post(f"{url}/api/2.0/mlflow/runs/create", json=values, timeout=30).json()["run"]["info"]["run_id"]
    asked = [
        team.post(f"{url}/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run}&path=x.txt", data=b"x", timeout=30),
        team.get(f"{url}/get-artifact?run_id={run}&path=secret.txt", timeout=30),
        team.get(f"{url}/api/2.0/mlflow/artifacts/list?run_id={run}", timeout=30),
    ]
    for answered in asked:
        assert (answered.status_code, answered.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
        assert "in its own bucket only" in answered.text
    assert [path.name for path in outside.rglob("*")] == ["secret.txt"]


def test_the_bucket_is_the_only_store_of_the_server():
    """Of all that MLflow knows; a scheme that a new release brings must be refused, too."""
    program = (
        "from mlflow.store.artifact.artifact_repository_registry import get_registered_artifact_repositories as a\n"
        "print(*(name for name, made in a().items() if made.__module__ != 'bucket_only'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "stack" / "mlflow_plugin")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["s3", "runs", "models", "mlflow-artifacts"]


@pytest.mark.slow  # of these tests, CI runs this one
def test_artifacts_arrive_in_the_bucket_from_clients_without_its_keys(servers, client, tmp_path):
    run = client.create_run(client.create_experiment("artifacts")).info.run_id
    client.log_metric(run, "loss", 0.5, step=3)
    (tmp_path / "weights.bin").write_bytes(WEIGHTS)
    client.log_artifact(run, str(tmp_path / "weights.bin"))
    keys = {"aws_access_key_id": servers.secrets["S3_ACCESS_KEY"], "aws_secret_access_key": "not checked by moto"}
    store = boto3.client("s3", endpoint_url=servers.address("s3"), region_name="us-east-1", **keys)
    listed = store.list_objects_v2(Bucket="convrec", Prefix="mlflow/")["Contents"]
    assert [item["Size"] for item in listed if run in item["Key"]] == [len(WEIGHTS)]
    assert Path(client.download_artifacts(run, "weights.bin", str(tmp_path))).read_bytes() == WEIGHTS
    rows = query(servers, "mlflow", "SELECT key, value, step FROM metrics WHERE run_uuid = %s", run)
    assert rows == [("loss", 0.5, 3)]


def test_the_service_waits_for_a_champion_and_has_its_database(servers, monkeypatch):
    assert requests.get(f"{servers.address('serve')}/ready", timeout=30).status_code == 503
    for headers, status in (({}, 401), ({"Authorization": f"Bearer {servers.key}"}, 503)):
        question = {"json": {"conversation": "a film"}, "headers": headers}
        assert requests.post(f"{servers.address('serve')}/recommend", **question, timeout=30).status_code == status
    wait_for(lambda: "the models stay as they are" in servers.log("serve"), 60, "the service to ask the registry")
    monkeypatch.setenv("PGPASSWORD", servers.secrets["FEEDBACK_DB_PASSWORD"])
    store = FeedbackStore(f"postgresql://feedback@{HOST}:{servers.ports['postgres']}/feedback")
    assert store.answers().height == 0


def test_secrets_are_in_no_log_and_no_process_list(servers):
    own = {pid for name in servers.ports if (pid := servers.pid(name))}
    shown = [servers.log(name) for name in servers.ports]
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            if own & {process.pid, *(parent.pid for parent in process.parents())}:
                shown.append(" ".join(process.cmdline()))
    assert any("mlflow server" in text for text in shown)
    told = {name for name, secret in servers.secrets.items() if any(secret in text for text in shown)}
    assert told <= {"S3_ACCESS_KEY"}, "the id of the key is part of each signed URL"
    known = " ".join(servers.clients().values())  # no key of the store, no password of a database
    given = {name for name, secret in servers.secrets.items() if secret in known}
    assert given == {"MLFLOW_TEAM_PASSWORD", "PREFECT_PASSWORD"}


def test_a_restart_keeps_everything_and_provisioning_can_be_repeated(servers, client):
    """Runs, accounts and pools."""
    run = client.create_run(client.create_experiment("restart")).info.run_id
    client.log_metric(run, "loss", 0.5, step=3)
    for name in ("prefect", "mlflow", "postgres"):
        servers.stop(name)
    with pytest.raises(requests.ConnectionError):
        requests.get(servers.address("mlflow"), timeout=5)
    servers.start("postgres", "mlflow", "prefect")
    assert client.get_run(run).data.metrics == {"loss": 0.5}
    pools = servers.prefect("work_pools/filter", limit=9)
    assert sorted((pool["name"], pool["type"]) for pool in pools) == [("cpu", "process"), ("gpu", "process")]
