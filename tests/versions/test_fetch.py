"""`convrec fetch` with the real hub library against a local server that speaks the hub's API."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest

from convrec.errors import InputError, NoSpace
from convrec.versions.fetch import fetch, lock_path

COMMIT, LATER = "a" * 40, "b" * 40
FILES = {
    "README.md": b"# films\n",
    "data/entity2id.csv": b"id,name\n1,Heat\n",
    "data/big [1].csv": b"large file\n" * 5000,
    "data/Amélie.txt": "Amélie\n".encode(),
}
LARGE = "data/big [1].csv"


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(ThreadingHTTPServer):
    """What the server holds, and what it was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.listed = dict(FILES)  # what the API tells
        self.served = dict(FILES)  # what a download gives
        self.head = COMMIT
        self.refusal: tuple[int, str] | None = None
        self.cut: str | None = None  # this file's first download ends early
        self.gone_after_cut = False
        self.asked: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None: ...

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _listing(self, name: str) -> dict:
        content = self.server.listed[name]
        entry = {"size": len(content)}
        if name == LARGE:
            sha256 = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"size": len(content), "sha256": sha256, "oid": sha256, "pointerSize": 130}
        return entry

    def _file(self, name: str) -> None:
        content = self.server.served[name]
        etag = hashlib.sha256(content).hexdigest() if name == LARGE else _blob(content)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        if self.server.cut == name and self.command == "GET":
            self.server.cut = None
            self.server.refusal = (403, "") if self.server.gone_after_cut else None
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[:-100_000])
            self.close_connection = True
            return
        self._answer(206 if begin else 200, content[begin:], headers)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if self.server.refusal:
            status, code = self.server.refusal
            self._answer(status, b"", {"X-Error-Code": code} if code else {})
        elif path.startswith("/api/datasets/owner/films/revision/"):
            if path.rsplit("/", 1)[1] not in ("main", "v1", COMMIT):
                return self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            siblings = [
                {"rfilename": name, "blobId": _blob(self.server.listed[name]), **self._listing(name)}
                for name in self.server.listed
            ]
            self._json({"id": "owner/films", "sha": self.server.head, "siblings": siblings})
        elif path.startswith("/api/datasets/owner/films/tree/"):
            self._json(
                [
                    {"type": "file", "path": name, "oid": _blob(self.server.listed[name]), **self._listing(name)}
                    for name in self.server.listed
                ]
            )
        elif path.startswith(f"/datasets/owner/films/resolve/{COMMIT}/"):
            self._file(path.split(COMMIT + "/", 1)[1])
        else:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        return None

    do_HEAD = do_GET


@pytest.fixture
def hub():
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


PROGRAM = """
import json, sys
from pathlib import Path
from convrec.errors import InputError
from convrec.versions.fetch import fetch
options = json.loads(sys.argv[1])
try:
    print(fetch(options.pop("kind"), options.pop("name"), Path("films"), **options))
except InputError as error:
    sys.exit(f"refused: {error}")
"""


@pytest.fixture
def run(hub, tmp_path):
    """A function that fetches in a process of its own, where the hub's library reads the endpoint."""

    def run_fetch(endpoint: str | None = None, **options) -> str:
        unwanted = ("HF_", "HUGGING", "CONVREC_")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
        environment |= {
            "HF_ENDPOINT": endpoint or f"http://127.0.0.1:{hub.server_address[1]}",
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_XET": "1",
        }
        request = json.dumps({"kind": "dataset", "name": "owner/films", **options})
        command = [sys.executable, "-c", PROGRAM, request]
        result = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert "Traceback" not in result.stderr, result.stderr
        return result.stdout if result.returncode == 0 else result.stderr[result.stderr.index("refused: ") :]

    return run_fetch


def _there(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_dataset_is_fetched_and_pinned_and_checked_again(hub, run, tmp_path):
    output = run()
    assert f"main is commit {COMMIT}; 4 files" in output and "commit that file to git" in output
    folder = tmp_path / "films"
    assert _there(folder) == FILES, "nothing but the hub's files"
    lock = json.loads(lock_path(folder).read_text())
    assert (lock["commit"], lock["name"], lock["revision"]) == (COMMIT, "owner/films", "main")
    assert lock["files"][LARGE] == {
        "size": len(FILES[LARGE]),
        "sha256": hashlib.sha256(FILES[LARGE]).hexdigest(),
    }
    hub.asked.clear()
    hub.head = LATER
    assert "all checked; downloaded now: none" in run()
    assert hub.asked == [], "whole files need no hub"


def test_damaged_and_missing_files_are_fetched_again(hub, run, tmp_path):
    run(revision="v1")
    folder = tmp_path / "films"
    (folder / LARGE).write_bytes(b"L" + FILES[LARGE][1:])
    (folder / "README.md").unlink()
    (folder / "mine.txt").write_text("mine")
    hub.asked.clear()
    output = run()
    assert f"downloaded now: README.md, {LARGE}" in output and "1 other files are in the folder" in output
    assert _there(folder) == {**FILES, "mine.txt": b"mine"}
    assert not any("entity2id" in line for line in hub.asked)


def test_a_file_that_changed_after_pinning_is_refused(hub, run, tmp_path):
    run()
    folder = tmp_path / "films"
    (folder / "README.md").unlink()
    hub.served["README.md"] = hub.listed["README.md"] = b"# other films\n"
    output = run()
    assert output.startswith("refused: README.md") and "remove the lock and the folder" in output
    for content in (b"# other films\n", FILES["README.md"]):
        assert hashlib.sha256(content).hexdigest() in output
    assert not (folder / "README.md").exists()
    hub.served["README.md"] = FILES["README.md"]
    assert "downloaded now: README.md" in run()


@pytest.mark.parametrize("name", [LARGE, "README.md"])
def test_a_download_that_is_not_what_the_hub_lists_is_refused(hub, run, tmp_path, name):
    hub.served[name] = b"x" * len(FILES[name])
    assert f"refused: {name}: its hash is" in run()
    assert list(tmp_path.glob("films*")) == []
    hub.served[name] = FILES[name]
    assert "4 files" in run()


def test_a_download_that_breaks_off_goes_on_where_it_was(hub, run, tmp_path):
    content = b"large file\n" * 1_100_000
    hub.listed[LARGE] = hub.served[LARGE] = content
    hub.cut = LARGE
    assert "4 files" in run() and _there(tmp_path / "films") == {**FILES, LARGE: content}
    whole_chunks = 10 * 1024 * 1024  # the hub's library keeps chunks of this size
    assert [line for line in hub.asked if LARGE in line and line.endswith(f"bytes={whole_chunks}-")]


def test_complete_files_of_an_interrupted_fetch_are_kept(hub, run, tmp_path):
    hub.cut, hub.gone_after_cut = LARGE, True
    assert "refused: dataset owner/films: could not be fetched" in run()
    assert not (tmp_path / "films").exists()
    complete = [name for name in FILES if (tmp_path / "films.partial" / name).is_file()]
    assert LARGE not in complete
    hub.refusal = None
    hub.asked.clear()
    assert "4 files" in run() and _there(tmp_path / "films") == FILES
    assert not [line for line in hub.asked if any(line.endswith(f"/{name}") for name in complete)]
    assert not (tmp_path / "films.partial").exists()


def test_patterns_choose_files_and_are_pinned(run, tmp_path):
    assert "2 files" in run(patterns=["*.csv"])
    assert set(_there(tmp_path / "films")) == {"data/entity2id.csv", LARGE}
    assert "downloaded now: none" in run()
    assert "--include ['*.md']" in run(patterns=["*.md"])


def test_another_request_than_the_pinned_one_is_refused(run):
    run(revision="v1")
    assert "downloaded now: none" in run(revision=COMMIT)
    assert f"--revision main: films.lock.json pins {COMMIT}" in run(revision="main")
    assert "NAME model owner/films" in run(kind="model")


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((403, "GatedRepo"), "gated; accept its terms"),
        ((401, "RepoNotFound"), "check the name (OWNER/NAME)"),
        ((500, ""), "could not be fetched"),
    ],
)
def test_what_the_hub_refuses_is_told(hub, run, refusal, words):
    hub.refusal = refusal
    assert words in run() and list(Path().glob("films*")) == []


def test_unknown_names_are_told(run):
    assert "dataset owner/films: it has no branch, tag or commit v9" in run(revision="v9")
    assert "model owner/films: not found" in run(kind="model")
    assert "refused: dataset a/b/c:" in run(name="a/b/c")
    assert "--include ['*.zip']: matches none of the 4 files" in run(patterns=["*.zip"])
    assert "could not be fetched from http://127.0.0.1:9" in run(endpoint="http://127.0.0.1:9")


def test_a_folder_of_other_files_is_left(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "x").write_text("mine")
    with pytest.raises(InputError, match="already contains files"):
        fetch("dataset", "owner/films", folder)
    for content in ("{", '{"kind": "dataset"}', "[]"):
        lock_path(folder).write_text(content)
        with pytest.raises(InputError, match="not a lock file of `convrec data fetch`"):
            fetch("dataset", "owner/films", folder)
    files = {"../x": {"size": 1, "sha256": "0"}}
    lock = {"kind": "dataset", "name": "a/b", "revision": "main", "commit": COMMIT, "patterns": None, "files": files}
    lock_path(folder).write_text(json.dumps(lock))
    with pytest.raises(InputError, match="a path in it is invalid"):
        fetch("dataset", "a/b", folder)


def test_a_disk_without_room_is_told_before_anything_is_fetched(tmp_path, monkeypatch):
    lock = {"kind": "dataset", "name": "owner/films", "revision": "main", "commit": COMMIT, "patterns": None}
    files = {"a.csv": {"size": 9, "sha256": "0" * 64}}
    lock_path(tmp_path / "films").write_text(json.dumps({**lock, "files": files}))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=8))
    with pytest.raises(NoSpace, match="9 bytes are needed, but only 8 are free; make room"):
        fetch("dataset", "owner/films", tmp_path / "films")
