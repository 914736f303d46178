"""A hostile tracking server's record of a run: what `convrec data restore` does not take from it."""

import hashlib
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from dvc.repo import Repo
from mlflow import MlflowClient

from convrec import tracking
from convrec.errors import InputError
from convrec.tracking import versions
from convrec.versions.restore import restore
from convrec.versions.trust import check_contents, check_names
from tests.files.test_yaml import BOMB
from tests.versions.test_restore import RAW, _commit, _is_first, _refused, history, past  # noqa: F401  (two are fixtures)

FILE = f"{RAW}.dvc"
MD5 = "0" * 32
ESCAPING = f"outs:\n- md5: {MD5}\n  hash: md5\n  path: ../torch\n".encode()


def _recorded(run_id: str) -> dict[str, bytes]:
    return dict(tracking.recorded_versions(run_id).files)


def _forge(files: dict[str, bytes]) -> str:
    """Write a record of these files, as whoever can write to the server could, and return its run's id."""
    client = MlflowClient()
    run_id = client.create_run(tracking.connect()).info.run_id
    with TemporaryDirectory() as folder:
        versions.write_versions(files, Path(folder, versions.FOLDER))
        client.log_artifacts(run_id, folder)
    client.set_tag(run_id, versions.DIGEST_TAG, versions.digest(files))
    client.set_terminated(run_id)
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
def test_files_that_no_run_records_are_refused(name):
    check_names(["params.yaml", "dvc.yaml", "dvc.lock", FILE], "abc")
    with pytest.raises(InputError, match=f"--run abc: its record contains '{name}', which no run records"):
        check_names(["params.yaml", name], "abc")


def test_no_hook_is_written(history):  # noqa: F811
    run_id = _forge({**_recorded(history.first), ".git/hooks/post-checkout": b"#!/bin/sh\ntouch owned\n"})
    assert "which no run records" in _refused(run_id, force=True)
    assert not Path(".git/hooks/post-checkout").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("data/raw/new.dvc", _dvc_file("../../../x"), "new data must be below data/"),
        ("data/raw/new.dvc", _dvc_file("/tmp/x"), "new data must be below data/"),
        ("data/raw/new.dvc", _dvc_file(".git/hooks"), "new data must be below data/"),
        ("data/raw/new.dvc", _dvc_file("x", wdir="../.."), "wdir"),
        ("torch.dvc", _dvc_file("torch"), "new data must be below data/"),
        ("src/convrec/new.py.dvc", _dvc_file("new.py"), "new data must be below data/"),
        ("data/raw/new.dvc", _dvc_file("x", cmd="touch owned"), "cmd"),
        ("data/raw/new.dvc", _dvc_file("x", deps=[{"path": "https://example.org/x"}]), "deps"),
        ("data/raw/new.dvc", _dvc_file("x", "../../../../x"), "no valid file hash"),
        ("data/raw/new.dvc", b'{"outs": [{"path": "x"}]}', "no valid file hash"),
        (FILE, _dvc_file("../../src"), "new data must be below data/"),
        (FILE, _dvc_file("films", deps=[{"path": "/etc/passwd"}]), "deps"),
        (
            "dvc.lock",
            b'{"stages": {"data": {"outs": [{"path": "data/processed", "md5": "../../x"}]}}}',
            "has no valid file hash",
        ),
        ("data/evil.dvc", b"desc:\tx\n" + ESCAPING, "not a plain YAML mapping"),
        ("data/evil.dvc", "desc: x\u2028cmd: y\n".encode() + ESCAPING, "not a plain YAML mapping"),
        ("data/evil.dvc", b"meta: &a {b: *a}\n" + ESCAPING, "not a plain YAML mapping"),
        ("data/evil.dvc", b"desc: \xff\n" + ESCAPING, "not a plain YAML mapping"),
        ("data/evil.dvc", b"", "not a plain YAML mapping"),
        ("dvc.lock", b"schema:\tx\nstages: {data: {outs: [{path: data/processed, md5: x}]}}\n", "not a plain YAML"),
        (
            "params.yaml",
            b"x:\ty\nrank_grpo:\n  vllm_server_base_url: http://evil.example\n",
            "not a plain YAML mapping",
        ),
    ],
)
def test_records_that_do_more_than_name_data_are_refused(name, content, words):
    present = {FILE: _dvc_file("films")}
    check_contents({FILE: _dvc_file("films", "1" * 32 + ".dir"), "data/x.dvc": _dvc_file("x")}, present, "abc")
    with pytest.raises(InputError, match=f"--run abc: no commit here contains its {name}.*{words}"):
        check_contents({name: content}, present, "abc")


@pytest.mark.parametrize("name", ["params.yaml", "data/evil.dvc", "dvc.lock"])
def test_aliases_that_stand_for_more_than_a_computer_holds_are_refused(history, name):  # noqa: F811
    output = _refused(_forge({**_recorded(history.first), name: BOMB.encode()}), force=True)
    assert f"its {name}, which is not a plain YAML mapping: not usable as YAML (more than 100,000 values" in output


def test_such_aliases_in_a_local_file_are_refused_too(history):  # noqa: F811
    run_id = _forge(_recorded(history.first))
    Path("local.dvc").write_text(BOMB)
    assert "local.dvc: not usable as YAML (more than 100,000 values" in _refused(run_id, force=True)


def test_no_data_is_brought_beside_the_code(history):  # noqa: F811
    run_id = _forge({**_recorded(history.first), "torch.dvc": _dvc_file("torch", _put_in_cache(b"code"))})
    assert "new data must be below data/" in _refused(run_id, force=True)


def test_no_data_is_brought_by_what_only_dvc_can_read(history):  # noqa: F811
    escaping = ESCAPING.replace(MD5.encode(), _put_in_cache(b"code").encode())
    run_id = _forge({**_recorded(history.first), "data/evil.dvc": b"desc:\tx\n" + escaping})
    assert "not a plain YAML mapping" in _refused(run_id, force=True)
    assert not Path("torch").exists()


@pytest.mark.parametrize("name", ["params.yaml", "dvc.lock", *sorted(map(str, Path("profiles").glob("*.yaml")))])
def test_files_of_the_project_are_read_alike(name):
    content = Path(name).read_bytes()
    kind = "dvc.lock" if name == "dvc.lock" else "params.yaml"
    check_contents({kind: content}, {kind: content}, "abc")
    with pytest.raises(InputError, match="not a plain YAML mapping"):
        check_contents({kind: content + b"more:\tx\n"}, {kind: content}, "abc")


@pytest.mark.parametrize(
    "changes",
    [
        {"base_model": {"name": "evil/model", "trust_remote_code": True}},
        {"demonstrations": {"embedder": {"name": "evil/model", "trust_remote_code": True}}},
        {"demonstrations": {"teacher": {"base_url": "http://evil.example/v1"}}},
        {"rank_grpo": {"vllm_server_base_url": "http://evil.example"}},
    ],
)
def test_parameters_that_run_code_or_send_keys_elsewhere_are_refused(changes):
    files = {"params.yaml": json.dumps({"seed": 1, **changes}).encode()}
    with pytest.raises(InputError, match="could run foreign code, or send data and keys elsewhere"):
        check_contents(files, {"params.yaml": b"seed: 2"}, "abc")
    check_contents(files, {"params.yaml": json.dumps({"seed": 2, **changes}).encode()}, "abc")


def test_a_key_is_not_sent_to_whom_a_record_names(history):  # noqa: F811
    teacher = "demonstrations: {teacher: {base_url: 'http://evil.example/v1'}}"
    run_id = _forge({**_recorded(history.first), "params.yaml": f"seed: 1\n{teacher}\n".encode()})
    assert "base_url = 'http://evil.example/v1'" in _refused(run_id, force=True)


@pytest.mark.parametrize(
    "changes", [{"base_model": {"name": "evil"}}, {"base_model": {"revision": "b"}}, {"rank_grpo": {"start": "evil"}}]
)
def test_a_trusted_model_is_not_exchanged(changes):
    trusting = {"base_model": {"name": "own", "revision": "a", "trust_remote_code": True}}
    recorded = {**trusting, **changes, "base_model": {**trusting["base_model"], **changes.get("base_model", {})}}
    with pytest.raises(InputError, match="which sets (base_model|rank_grpo)"):
        check_contents(
            {"params.yaml": json.dumps(recorded).encode()}, {"params.yaml": json.dumps(trusting).encode()}, "x"
        )


def _put_in_cache(content: bytes, suffix: str = "") -> str:
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest() + suffix
    with Repo() as repo:
        path = Path(repo.cache.local.oid_to_path(md5))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return md5


def test_a_listing_that_leads_out_of_its_folder_is_refused(history):  # noqa: F811
    relpath = "../../../.git/hooks/post-commit"
    md5 = _put_in_cache(b"touch owned")
    listing = _put_in_cache(json.dumps([{"md5": md5, "relpath": relpath}]).encode(), ".dir")
    files = {**_recorded(history.first), FILE: _dvc_file("films", listing)}
    assert "leads out of that folder" in _refused(_forge(files), force=True)
    assert not Path(".git/hooks/post-commit").exists()


def test_a_listing_with_a_path_for_a_hash_is_refused(history):  # noqa: F811
    listing = _put_in_cache(json.dumps([{"md5": "../../../../x", "relpath": "x"}]).encode(), ".dir")
    files = {**_recorded(history.first), FILE: _dvc_file("films", listing)}
    assert "or has an invalid hash" in _refused(_forge(files), force=True)


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
    for key, value in {tracking.COMMIT_TAG: "x; touch owned", "mlflow.runName": "red\x1b[31m"}.items():
        MlflowClient().set_tag(run_id, key, value)
    output = restore(run_id, force=True)
    assert "touch owned" not in output and "\x1b" not in output and _is_first()


def test_what_a_commit_holds_is_restored_as_it_is(history):  # noqa: F811
    """Also what would be refused of a stranger: git is what the project trusts."""
    files = _recorded(history.first)
    mine = _dvc_file("other", versions.raw_hashes(files)[RAW], desc="elsewhere")
    Path("other.dvc").write_bytes(mine)
    with Repo() as repo:
        repo.checkout(["other.dvc"], force=True)
    Path(".gitignore").write_text(Path(".gitignore").read_text() + "/other\n")
    _commit("data beside the code")
    assert "Run" in restore(_forge({**files, "other.dvc": mine}))


def test_a_run_id_is_no_path(history):  # noqa: F811
    for run_id in ("../../x", "/etc/passwd", "", "a' OR '1'='1"):
        assert "no such run" in _refused(run_id)
