"""A hostile tracking server's record of a run: what `convrec data restore` does not take from it."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from convrec import tracking
from convrec.versions import record as versions
from convrec.versions.restore import restore
from tests.versions.test_restore import RAW, _is_first, _refused, history, past  # noqa: F401  (two are fixtures)

FILE = f"{RAW}.dvc"
MD5 = "0" * 32


def _recorded(run_id: str) -> dict[str, bytes]:
    return dict(tracking.recorded_versions(run_id).files)


def _forge(files: dict[str, bytes]) -> str:
    """Write a record of these files, as whoever can write to the server could, and return its run's id."""
    run_id = tracking.start_pipeline_run("forged", {})
    run = tracking.Run(run_id)
    run.log_versions(files)
    run.set_tags({versions.DIGEST_TAG: versions.digest(files)})
    return run_id


def _dvc_file(path: str, md5: str = MD5, **more) -> bytes:
    out = {"md5": md5, "hash": "md5", "path": path}
    return json.dumps({"outs": [out], **more}).encode()


@pytest.mark.parametrize(
    "name",
    [
        ".git/hooks/post-checkout",
        ".dvc/config",
        ".github/workflows/x.yml",
        ".hidden/raw.dvc",
        "data/.dvc",
        "src/convrec/cli.py",
        "Makefile",
        "sub/dvc.yaml",
        "sub/params.yaml",
    ],
)
def test_files_that_no_run_records_are_refused(history, name):  # noqa: F811
    run_id = _forge({**_recorded(history.first), name: b"#!/bin/sh\ntouch owned\n"})
    assert f"holds '{name}', which no run records" in _refused(run_id, force=True)
    assert not Path(".git/hooks/post-checkout").exists() and "owned" not in Path(".dvc/config").read_text()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("data/raw/new.dvc", _dvc_file("../../../x"), "new data lies below data/"),
        ("data/raw/new.dvc", _dvc_file("/tmp/x"), "new data lies below data/"),
        ("data/raw/new.dvc", _dvc_file(".git/hooks"), "new data lies below data/"),
        ("data/raw/new.dvc", _dvc_file("x", wdir="../.."), "wdir"),
        ("torch.dvc", _dvc_file("torch"), "new data lies below data/"),
        ("src/convrec/new.py.dvc", _dvc_file("new.py"), "new data lies below data/"),
        ("data/raw/new.dvc", _dvc_file("x", cmd="touch owned"), "cmd"),
        ("data/raw/new.dvc", _dvc_file("x", deps=[{"path": "https://example.org/x"}]), "deps"),
        ("data/raw/new.dvc", _dvc_file("x", "../../../../x"), "no hash of a file"),
        ("data/raw/new.dvc", b'{"outs": [{"path": "x"}]}', "no hash of a file"),
        (FILE, _dvc_file("../../src"), "new data lies below data/"),
        (FILE, _dvc_file("films", deps=[{"path": "/etc/passwd"}]), "deps"),
        ("dvc.lock", b'{"stages": {"data": {"outs": [{"path": "data/processed", "md5": "../../x"}]}}}', "no hash"),
    ],
)
def test_records_that_do_more_than_name_data_are_refused(history, name, content, words):  # noqa: F811
    message = _refused(_forge({**_recorded(history.first), name: content}), force=True)
    assert words in message and name in message and "no commit here holds" in message


@pytest.mark.parametrize(
    "changes",
    [
        {"base_model": {"name": "evil/model", "trust_remote_code": True}},
        {"demonstrations": {"embedder": {"name": "evil/model", "trust_remote_code": True}}},
        {"demonstrations": {"teacher": {"base_url": "http://evil.example/v1"}}},
        {"rank_grpo": {"vllm_server_url": "http://evil.example"}},
    ],
)
def test_parameters_that_run_code_or_send_keys_elsewhere_are_refused(history, changes):  # noqa: F811
    files = _recorded(history.first)
    value = YAML(typ="safe").load(files["params.yaml"])
    run_id = _forge({**files, "params.yaml": json.dumps({**value, **changes}).encode()})
    message = _refused(run_id, force=True)
    assert "foreign code could run, or data and keys go elsewhere" in message
    Path("params.yaml").write_text(json.dumps({"seed": 9, "data": {"path": RAW}, **changes}))
    assert "files written: params.yaml" in restore(run_id, force=True), "what is set here is trusted"


def test_a_trusted_model_is_not_exchanged(history):  # noqa: F811
    files = _recorded(history.first)
    value = YAML(typ="safe").load(files["params.yaml"])
    trusting = {"name": "own/model", "revision": "abc", "trust_remote_code": True}
    Path("params.yaml").write_text(json.dumps({"seed": 9, "data": {"path": RAW}, "base_model": trusting}))
    for change in ({"name": "evil/model"}, {"revision": "def"}):
        forged = json.dumps({**value, "base_model": {**trusting, **change}}).encode()
        assert "base_model." in _refused(_forge({**files, "params.yaml": forged}), force=True)
    start = json.dumps({**value, "base_model": trusting, "rank_grpo": {"start": "evil/model"}}).encode()
    assert "rank_grpo.start = 'evil/model'" in _refused(_forge({**files, "params.yaml": start}), force=True)


def _put_in_cache(content: bytes, suffix: str = "") -> str:
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest() + suffix
    with Repo() as repo:
        path = Path(repo.cache.local.oid_to_path(md5))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return md5


@pytest.mark.parametrize("relpath", ["../../../.git/hooks/post-commit", "/tmp/x", "a//b", ".."])
def test_a_listing_that_leads_out_of_its_folder_is_refused(history, relpath):  # noqa: F811
    md5 = _put_in_cache(b"touch owned")
    listing = _put_in_cache(json.dumps([{"md5": md5, "relpath": relpath}]).encode(), ".dir")
    files = {**_recorded(history.first), FILE: _dvc_file("films", listing)}
    assert "leads out of that folder" in _refused(_forge(files), force=True)
    assert not Path(".git/hooks/post-commit").exists()


def test_a_listing_with_a_path_for_a_hash_is_refused(history):  # noqa: F811
    listing = _put_in_cache(json.dumps([{"md5": "../../../../x", "relpath": "x"}]).encode(), ".dir")
    files = {**_recorded(history.first), FILE: _dvc_file("films", listing)}
    assert "no hash" in _refused(_forge(files), force=True)


def test_a_link_in_the_workspace_is_not_written_through(history, tmp_path):  # noqa: F811
    outside = tmp_path / "outside"
    outside.mkdir()
    os.symlink(outside, "data/link")
    md5 = _put_in_cache(b"data")
    files = {**_recorded(history.first), "data/link/new.dvc": _dvc_file("x", md5)}
    _refused(_forge(files), force=True)
    assert list(outside.iterdir()) == []


def test_a_command_is_not_made_of_a_recorded_commit(history):  # noqa: F811
    run_id = _forge(_recorded(history.first))
    tracking.Run(run_id).set_tags({tracking.COMMIT_TAG: "x; touch owned", "mlflow.runName": "red\x1b[31m"})
    told = restore(run_id, force=True)
    assert "touch owned" not in told and "\x1b" not in told and _is_first()


def test_what_a_commit_holds_is_restored_as_it_is(history):  # noqa: F811
    """Also what would be refused of a stranger: git is what the project trusts."""
    files = _recorded(history.first)
    mine = _dvc_file("other", versions.raw_hashes(files)[RAW], desc="elsewhere")
    Path("other.dvc").write_bytes(mine)
    with Repo() as repo:
        repo.checkout(["other.dvc"], force=True)
    from tests.versions.test_restore import _commit  # noqa: PLC0415

    Path(".gitignore").write_text(Path(".gitignore").read_text() + "/other\n")
    _commit("data beside the code")
    assert "Run" in restore(_forge({**files, "other.dvc": mine}))


@pytest.mark.parametrize("run_id", ["../../x", "/etc/passwd", "", "a' OR '1'='1"])
def test_a_run_id_is_no_path(history, run_id):  # noqa: F811
    assert "no such run" in _refused(run_id)
