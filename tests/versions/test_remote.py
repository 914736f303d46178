"""DVC's remote storage: raw data goes to an object store or a folder, and comes back to the byte."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

pytestmark = pytest.mark.slow

FILES = {
    "conversations.jsonl": b'{"id": 1}\n' * 1000,
    "deep/er/catalog.csv": "title\nAmélie\n".encode(),
    "Amélie – le fabuleux destin.txt": b"\x00\xff\r\n",
    "empty": b"",
}
FOLDER = Path("data/raw/films")
KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


@pytest.fixture(scope="module")
def s3():
    """The address of a local S3 server with the bucket `bucket`."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    boto3.client("s3", endpoint_url=endpoint, **KEYS).create_bucket(Bucket="bucket")
    yield endpoint
    server.stop()


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "DVC_"))}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert not check or result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result


def _s3_remote(endpoint: str) -> None:
    _run("dvc", "remote", "add", "--default", "storage", "s3://bucket/path")
    _run("dvc", "remote", "modify", "storage", "endpointurl", endpoint)
    for key, value in (("access_key_id", "test"), ("secret_access_key", "test"), ("region", "us-east-1")):
        _run("dvc", "remote", "modify", "--local", "storage", key, value)


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A project whose raw data is under DVC, with no remote yet."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    _run("git", "init", "--quiet")
    _run("dvc", "init", "--quiet")
    for name, content in FILES.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_bytes(content)
    _run("dvc", "add", "--quiet", str(FOLDER))
    return folder


def _there() -> dict[str, bytes]:
    return {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["s3", "folder"])
def test_raw_data_comes_back_from_the_remote(project, s3, kind):
    if kind == "s3":
        _s3_remote(s3)
        assert "test" not in Path(".dvc/config").read_text(), "keys stay out of git"
    else:
        _run("dvc", "remote", "add", "--default", "storage", str(project.parent / "storage"))
    assert "5 files pushed" in _run("dvc", "push").stdout
    assert "up to date" in _run("dvc", "push").stdout
    shutil.rmtree(".dvc/cache")
    shutil.rmtree(FOLDER)
    _run("dvc", "pull")
    assert _there() == FILES
    assert "up to date" in _run("dvc", "status").stdout
    if kind == "s3":
        stored = boto3.client("s3", endpoint_url=s3, **KEYS).list_objects_v2(Bucket="bucket", Prefix="path/")
        assert stored["KeyCount"] == 5


def test_a_remote_that_cannot_be_reached_fails(project):
    _s3_remote("http://127.0.0.1:9")
    shutil.rmtree(".dvc/cache")
    shutil.rmtree(FOLDER)
    result = _run("dvc", "pull", check=False)
    assert result.returncode != 0 and "127.0.0.1:9" in result.stderr
    assert not FOLDER.exists()


def test_data_that_was_never_pushed_fails(project, s3):
    _s3_remote(s3)
    (FOLDER / "new").write_text("never pushed")
    _run("dvc", "add", "--quiet", str(FOLDER))
    shutil.rmtree(".dvc/cache")
    shutil.rmtree(FOLDER)
    assert _run("dvc", "pull", check=False).returncode != 0
