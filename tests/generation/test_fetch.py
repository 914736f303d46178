"""`convrec data fetch` with the real hub library against a local server that speaks the hub's API."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from convrec.generation.fetch import fetch, lock_path
from convrec.project.errors import InputError
from tests.local_hub import COMMIT, LocalHub

FILES = {
    "README.md": b"# films\n",
    "data/entity2id.csv": b"id,name\n1,Heat\n",
    "data/big [1].csv": b"large file\n" * 5000,
    "data/Amélie.txt": "Amélie\n".encode(),
}
LARGE = "data/big [1].csv"
PROGRAM = """
import json, sys
from pathlib import Path
from convrec.project.errors import InputError
from convrec.generation.fetch import fetch
options = json.loads(sys.argv[1])
try:
    print(fetch(options.pop("kind"), options.pop("name"), Path("films"), **options))
except InputError as error:
    sys.exit(f"refused: {error}")
"""


@pytest.fixture
def hub(tmp_path) -> Iterator[LocalHub]:
    folder = tmp_path / "repository"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    with LocalHub({"datasets/owner/films": folder}) as server:
        yield server


@pytest.fixture
def run(hub, tmp_path):
    """A function that fetches in a process of its own, where the hub's library reads the endpoint."""

    def run_fetch(endpoint: str | None = None, **options) -> str:
        unwanted = ("HF_", "HUGGING", "CONVREC_")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
        environment |= {
            "HF_ENDPOINT": endpoint or hub.address,
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


def test_a_dataset_is_fetched_pinned_checked_and_repaired(run, tmp_path):
    output = run()
    assert f"dataset owner/films at commit {COMMIT}: 4 files" in output and "commit that file to git" in output
    folder = tmp_path / "films"
    assert _there(folder) == FILES, "nothing but the hub's files"
    pinned = {"kind": "dataset", "name": "owner/films", "commit": COMMIT, "patterns": None}
    assert json.loads(lock_path(folder).read_text()) == pinned

    (folder / LARGE).write_bytes(b"L" + FILES[LARGE][1:])
    (folder / "README.md").unlink()
    (folder / "mine.txt").write_text("mine")
    assert "4 files" in run()
    assert _there(folder) == {**FILES, "mine.txt": b"mine"}


@pytest.mark.parametrize("name", [LARGE, "README.md"])
def test_a_download_that_is_not_what_the_hub_lists_is_refused(hub, run, tmp_path, name):
    hub.served[Path(name).name] = b"x" * len(FILES[name])
    assert f"refused: {name}: its hash is" in run()
    assert name not in _there(tmp_path / "films")
    hub.served.clear()
    assert "4 files" in run()


@pytest.mark.slow
def test_an_interrupted_fetch_is_resumed(hub, run, tmp_path):
    hub.refusals[f"{COMMIT}/{LARGE}"] = (403, "")
    assert "refused: dataset owner/films: could not be fetched" in run()
    complete = [name for name in FILES if (tmp_path / "films" / name).is_file()]
    hub.refusals.clear()
    hub.asked.clear()
    assert "4 files" in run() and _there(tmp_path / "films") == FILES
    assert not [path for path in hub.asked if any(path.endswith(f"/{name}") for name in complete)]


@pytest.mark.slow
def test_patterns_and_revision_are_pinned(run, tmp_path):
    assert "2 files" in run(patterns=["*.csv"], revision="v1")
    assert set(_there(tmp_path / "films")) == {"data/entity2id.csv", LARGE}
    assert "2 files" in run(revision=COMMIT)
    pinned = f"films.lock.json pins dataset owner/films at commit {COMMIT}, --include ['*.csv']"
    assert pinned in run(patterns=["*.md"])


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((403, "GatedRepo"), "gated; accept its terms"),
        ((401, "RepoNotFound"), "check the name (OWNER/NAME)"),
        ((404, "RevisionNotFound"), "dataset owner/films: it has no branch, tag or commit v9"),
    ],
)
def test_refusals_of_the_hub_are_reported(hub, run, refusal, words):
    hub.refusals["owner/films"] = refusal
    assert words in run(revision="v9")


def test_wrong_requests_are_reported(run, tmp_path):
    assert "model owner/films: not found" in run(kind="model")
    assert "refused: dataset a/b/c:" in run(name="a/b/c")
    assert "--include ['*.zip']: matches none of the 4 files" in run(patterns=["*.zip"])
    assert "could not be fetched from http://127.0.0.1:9" in run(endpoint="http://127.0.0.1:9")
    assert list(tmp_path.glob("films*")) == []


def test_other_files_and_damaged_locks_are_left_alone(tmp_path):
    folder = tmp_path / "films"
    folder.mkdir()
    (folder / "x").write_text("mine")
    with pytest.raises(InputError, match="already contains files"):
        fetch("dataset", "owner/films", folder)
    for content in ("{", '{"kind": "dataset"}', "[]"):
        lock_path(folder).write_text(content)
        with pytest.raises(InputError, match="not a lock file of `convrec data fetch`"):
            fetch("dataset", "owner/films", folder)
    assert _there(folder) == {"x": b"mine"}
