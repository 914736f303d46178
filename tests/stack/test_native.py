"""The servers themselves, started natively: who is let in, what is where, what a restart keeps."""

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore
import psutil
import psycopg2
import pytest
import requests
from botocore.config import Config
from botocore.exceptions import ClientError
from mlflow import MlflowClient
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

from convrec.feedback import FeedbackStore
from stack import Stack
from stack.services import SERVICES
from stack.settings import PORTS
from tests.project import ROOT

FLOW = """
from prefect import flow

@flow
def greet(name: str) -> str:
    return f"hello {name}"
"""


@pytest.fixture
def client(native_stack: Stack, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """A client of MLflow with the variables of FOLDER/env alone."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    for name, value in native_stack.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    return MlflowClient(native_stack.environment()["MLFLOW_TRACKING_URI"])


def record(client: MlflowClient, experiment: str, folder: Path) -> tuple[str, bytes]:
    """Record a run with a metric and an artifact that is sent in parts; return the run's id and the artifact."""
    made = client.create_experiment(experiment)
    run = client.create_run(made).info.run_id
    client.log_metric(run, "loss", 0.5, step=3)
    content = os.urandom(9 * 2**20)
    (folder / "weights.bin").write_bytes(content)
    client.log_artifact(run, str(folder / "weights.bin"))
    return run, content


def store(stack: Stack, **options: Any) -> Any:
    return boto3.client("s3", endpoint_url=stack.address("s3"), region_name="us-east-1", **options)


def keys(stack: Stack) -> dict[str, str]:
    secrets = stack.secrets()
    return {"aws_access_key_id": secrets["S3_ACCESS_KEY"], "aws_secret_access_key": secrets["S3_SECRET_KEY"]}


def rows(stack: Stack, database: str, query: str, *values: object) -> list[tuple]:
    port = int(stack.address("postgres").rpartition(":")[2])
    words = stack.secrets()["POSTGRES_PASSWORD"]
    connection = psycopg2.connect(host="127.0.0.1", port=port, user="postgres", password=words, dbname=database)
    with connection, connection.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchall()


def prefect(stack: Stack, path: str, **values: Any) -> requests.Response:
    variables = stack.environment()
    user, _, password = variables["PREFECT_API_AUTH_STRING"].partition(":")
    return requests.post(f"{variables['PREFECT_API_URL']}/{path}", json=values, auth=(user, password), timeout=30)


def processes(stack: Stack) -> list[psutil.Process]:
    found = [psutil.Process(pid) for name in SERVICES if (pid := stack.pid(name))]
    return found + [child for process in found for child in process.children(recursive=True)]


def test_a_second_up_changes_nothing(native_stack):
    before = {name: native_stack.pid(name) for name in SERVICES}
    environment = (native_stack.folder / "env").read_text()
    native_stack.up()
    assert all(before.values())
    assert {name: native_stack.pid(name) for name in SERVICES} == before
    assert (native_stack.folder / "env").read_text() == environment


def test_servers_listen_on_this_machine_only(native_stack):
    found = [connection for process in processes(native_stack) for connection in process.net_connections("inet")]
    listening = {connection.laddr for connection in found if connection.status == psutil.CONN_LISTEN}
    assert {address.ip for address in listening} == {"127.0.0.1"}
    expected = {int(native_stack.address(name).rpartition(":")[2]) for name in PORTS}
    assert expected <= {address.port for address in listening}


def test_the_service_waits_for_a_champion_and_has_its_database(native_stack, monkeypatch):
    url = native_stack.address("serve")
    assert requests.get(f"{url}/health", timeout=30).ok
    assert requests.get(f"{url}/ready", timeout=30).status_code == 503
    deadline = time.monotonic() + 60
    while "the models stay as they are" not in native_stack.log("serve").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    monkeypatch.setenv("PGPASSWORD", native_stack.secrets()["FEEDBACK_DB_PASSWORD"])
    database = native_stack.address("postgres").replace("//", "//feedback@")
    assert FeedbackStore(f"{database}/feedback").answers().height == 0


@pytest.mark.parametrize("auth", [None, ("team", "wrong"), ("admin", "password1234")])
def test_mlflow_refuses_strangers(native_stack, auth):
    url = f"{native_stack.address('mlflow')}/api/2.0/mlflow/experiments/create"
    refused = requests.post(url, json={"name": "stranger"}, auth=auth, timeout=30)
    assert refused.status_code == 401
    found = rows(native_stack, "mlflow", "SELECT name FROM experiments WHERE name = 'stranger'")
    assert found == []


def test_mlflow_team_cannot_make_users(native_stack):
    variables = native_stack.environment()
    auth = variables["MLFLOW_TRACKING_USERNAME"], variables["MLFLOW_TRACKING_PASSWORD"]
    values = {"username": "friend", "password": "of twelve letters"}
    url = f"{native_stack.address('mlflow')}/api/2.0/mlflow/users/create"
    assert requests.post(url, json=values, auth=auth, timeout=30).status_code == 403


@pytest.fixture
def outside(native_stack) -> Iterator[Path]:
    """A folder beside the stack's, with a secret: what the server's user can read and write."""
    folder = native_stack.folder.parent / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text("a secret")
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("location", ["file://{0}", "{0}", "file:{0}", "../outside", "FILE://{0}"])
def test_mlflow_neither_writes_nor_reads_files_of_its_machine(native_stack, outside, location, request):
    """Whoever may create an experiment says where its artifacts are."""
    variables = native_stack.environment()
    team = requests.Session()
    team.auth = variables["MLFLOW_TRACKING_USERNAME"], variables["MLFLOW_TRACKING_PASSWORD"]
    url = native_stack.address("mlflow")
    values = {"name": request.node.name, "artifact_location": location.format(outside)}
    made = team.post(f"{url}/api/2.0/mlflow/experiments/create", json=values, timeout=30)
    assert made.ok, made.text
    experiment = made.json()["experiment_id"]
    values = {"experiment_id": experiment, "start_time": 1}
    run = team.post(f"{url}/api/2.0/mlflow/runs/create", json=values, timeout=30).json()["run"]["info"]["run_id"]
    values = {"experiment_id": experiment, "name": "m"}
    logged = team.post(f"{url}/api/2.0/mlflow/logged-models", json=values, timeout=30)
    model = logged.json()["model"]["info"]["model_id"]
    asked = [
        team.post(f"{url}/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run}&path=x.txt", data=b"x", timeout=30),
        team.get(f"{url}/get-artifact?run_id={run}&path=secret.txt", timeout=30),
        team.get(f"{url}/api/2.0/mlflow/artifacts/list?run_id={run}", timeout=30),
        team.get(f"{url}/ajax-api/2.0/mlflow/logged-models/{model}/artifacts/files?artifact_file_path=x", timeout=30),
    ]
    for answered in asked:
        assert (answered.status_code, answered.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
        assert "in its own bucket only" in answered.text
    assert [path.name for path in outside.rglob("*")] == ["secret.txt"]


def test_the_bucket_is_the_only_store_of_the_server():
    """Of all that MLflow knows; a scheme that a new release brings is to be refused, too."""
    program = (
        "from mlflow.store.artifact.artifact_repository_registry import get_registered_artifact_repositories as a\n"
    )
    program += "print(*(name for name, made in a().items() if made.__module__ != 'bucket_only'))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "stack" / "mlflow_plugin")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["s3", "runs", "models", "mlflow-artifacts"]


@pytest.mark.parametrize("auth", [None, ("team", "wrong")])
def test_prefect_refuses_strangers(native_stack, auth):
    url = f"{native_stack.environment()['PREFECT_API_URL']}/flows/"
    assert requests.post(url, json={"name": "stranger"}, auth=auth, timeout=30).status_code == 401
    assert prefect(native_stack, "flows/filter", flows={"name": {"any_": ["stranger"]}}).json() == []


@pytest.mark.parametrize("who", ["nobody", "wrong secret"])
def test_the_store_refuses_strangers(native_stack, who):
    wrong = {**keys(native_stack), "aws_secret_access_key": "wrong"}
    anonymous = {"config": Config(signature_version=botocore.UNSIGNED)}
    stranger = store(native_stack, **(anonymous if who == "nobody" else wrong))
    with pytest.raises(ClientError):
        stranger.put_object(Bucket="convrec", Key="stranger", Body=b"x")
    owner = store(native_stack, **keys(native_stack))
    owner.put_object(Bucket="convrec", Key="mine", Body=b"x")
    with pytest.raises(ClientError):
        stranger.get_object(Bucket="convrec", Key="mine")
    listed = [item["Key"] for item in owner.list_objects_v2(Bucket="convrec")["Contents"]]
    assert "mine" in listed
    assert "stranger" not in listed


@pytest.mark.parametrize(
    ("user", "password", "database"),
    [("postgres", "wrong", "postgres"), ("postgres", "", "postgres"), ("mlflow", None, "prefect")],
)
def test_postgres_refuses_strangers(native_stack, user, password, database):
    """With a wrong password, with none, and in another server's database."""
    port = int(native_stack.address("postgres").rpartition(":")[2])
    words = native_stack.secrets()["MLFLOW_DB_PASSWORD"] if password is None else password
    with pytest.raises(psycopg2.OperationalError, match="password|permission denied"):
        psycopg2.connect(host="127.0.0.1", port=port, user=user, password=words, dbname=database, passfile="/dev/null")


def test_artifacts_arrive_in_the_bucket_from_clients_without_its_keys(native_stack, client, tmp_path):
    run, content = record(client, "artifacts", tmp_path)
    listed = store(native_stack, **keys(native_stack)).list_objects_v2(Bucket="convrec", Prefix="mlflow/")["Contents"]
    (found,) = [item for item in listed if run in item["Key"]]
    assert found["Size"] == len(content)
    back = client.download_artifacts(run, "weights.bin", str(tmp_path))
    assert Path(back).read_bytes() == content
    query = "SELECT key, value, step FROM metrics WHERE run_uuid = %s"
    assert rows(native_stack, "mlflow", query, run) == [("loss", 0.5, 3)]


def test_a_scheduled_run_is_made_and_done(native_stack, tmp_path):
    """SQLAlchemy 2.1 stops Prefect's scheduler without a word: manual runs work, scheduled ones never appear."""
    (tmp_path / "greeting.py").write_text(FLOW)
    flow = prefect(native_stack, "flows/", name="greet").json()["id"]
    made = prefect(
        native_stack,
        "deployments/",
        name="often",
        flow_id=flow,
        work_pool_name="cpu",
        entrypoint="greeting.py:greet",
        parameters={"name": "you"},
        pull_steps=[{"prefect.deployments.steps.set_working_directory": {"directory": str(tmp_path)}}],
        schedules=[{"schedule": {"interval": 10}, "active": True}],
    )
    assert made.ok, made.text
    deployment = made.json()["id"]

    @retry(retry=retry_if_result(lambda found: not found), wait=wait_fixed(0.5), stop=stop_after_delay(60))
    def done() -> list[dict]:
        wanted = {"deployment_id": {"any_": [deployment]}, "state": {"type": {"any_": ["COMPLETED", "FAILED"]}}}
        return prefect(native_stack, "flow_runs/filter", flow_runs=wanted).json()

    run = done()[0]
    paused = requests.patch(
        f"{native_stack.environment()['PREFECT_API_URL']}/deployments/{deployment}",
        json={"paused": True},
        auth=tuple(native_stack.environment()["PREFECT_API_AUTH_STRING"].split(":", 1)),
        timeout=30,
    )
    assert paused.ok
    assert run["auto_scheduled"]
    assert run["state_type"] == "COMPLETED"


def test_pools_are_there_once(native_stack):
    pools = prefect(native_stack, "work_pools/filter").json()
    assert sorted((pool["name"], pool["type"]) for pool in pools) == [("cpu", "process"), ("gpu", "process")]


def test_secrets_are_in_private_files_only(native_stack):
    for name in ("env", "servers.json"):
        assert stat.S_IMODE((native_stack.folder / name).stat().st_mode) == 0o600
    environment = native_stack.environment()
    secrets = {*native_stack.secrets().values(), environment["MLFLOW_TRACKING_PASSWORD"]}
    words = " ".join(word for process in processes(native_stack) for word in process.cmdline())
    logs = " ".join(native_stack.log(name).read_text(errors="replace") for name in SERVICES)
    assert "rclone" in words
    assert "MLflow" in logs or "uvicorn" in logs.lower()
    assert [secret for secret in secrets if secret in words or secret in logs] == []
    own = {name for name, value in environment.items() if value in native_stack.secrets().values()}
    assert own == {"MLFLOW_TRACKING_PASSWORD"}  # clients know no key of the store, no password of the database


def test_a_restart_keeps_everything(native_stack, client, tmp_path):
    """Runs, artifacts, accounts, addresses, and who holds a limit."""
    run, content = record(client, "restart", tmp_path)
    limit = prefect(native_stack, "v2/concurrency_limits/", name="restart", limit=1)
    assert limit.ok, limit.text
    held = prefect(
        native_stack, "v2/concurrency_limits/increment-with-lease", names=["restart"], slots=1, lease_duration=300
    )
    assert held.ok, held.text
    lease = held.json()["lease_id"]
    environment = native_stack.environment()
    native_stack.down()
    assert [name for name in SERVICES if native_stack.pid(name)] == []
    with pytest.raises(requests.ConnectionError):
        requests.get(native_stack.address("mlflow"), timeout=5)
    native_stack.up()
    assert native_stack.environment() == environment
    assert client.get_run(run).data.metrics == {"loss": 0.5}
    assert Path(client.download_artifacts(run, "weights.bin", str(tmp_path))).read_bytes() == content
    taken = prefect(
        native_stack, "v2/concurrency_limits/increment-with-lease", names=["restart"], slots=1, lease_duration=60
    )
    assert taken.status_code == 423
    renewed = prefect(native_stack, f"v2/concurrency_limits/leases/{lease}/renew", lease_duration=60)
    assert renewed.ok, renewed.text
    assert prefect(native_stack, "v2/concurrency_limits/decrement-with-lease", lease_id=lease).ok
