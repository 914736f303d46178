"""`convrec data fetch`, and whether a model can be fetched, asked of a local server that speaks the Hub's API."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from convrec.generation.fetch import fetch, lock_path
from convrec.generation.hub import model_license
from convrec.pipeline.memory import with_settings
from convrec.pipeline.preflight import CHECKS
from convrec.project.config.params import load_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from tests.local_hub import COMMIT, LocalHub
from tests.small_project import ROOT

FILES = {
    "README.md": b"# films\n",
    "data/entity2id.csv": b"id,name\n1,Heat\n",
    "data/big [1].csv": b"large file\n" * 5000,
    "data/Amélie.txt": "Amélie\n".encode(),
}
LARGE = "data/big [1].csv"
FOLDER, SOURCE = Path("films"), Path("repository")


@pytest.fixture
def hub(here, monkeypatch) -> Iterator[LocalHub]:
    """A dataset and a model of the same files; the test runs in a folder of its own."""
    for name, content in FILES.items():
        (SOURCE / name).parent.mkdir(parents=True, exist_ok=True)
        (SOURCE / name).write_bytes(content)
    with LocalHub({"datasets/owner/films": SOURCE, "models/owner/open": SOURCE}) as server:
        server.stand_in(monkeypatch)
        yield server


def _fetch(name: str = "owner/films", kind: str = "dataset", **options) -> str:
    return fetch(kind, name, FOLDER, **options)


def _refused(words: str, **options) -> None:
    with pytest.raises(InputError) as refused:
        _fetch(**options)
    assert words in str(refused.value)


def _there(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_dataset_is_fetched_pinned_checked_and_repaired(hub):
    output = _fetch()
    assert f"dataset owner/films at commit {COMMIT}: 4 files" in output and "commit that file to git" in output
    assert _there(FOLDER) == FILES, "nothing but the hub's files"
    pinned = {"kind": "dataset", "name": "owner/films", "commit": COMMIT, "patterns": None}
    assert json.loads(lock_path(FOLDER).read_text()) == pinned

    (FOLDER / LARGE).write_bytes(b"L" + FILES[LARGE][1:])
    (FOLDER / "README.md").unlink()
    (FOLDER / "mine.txt").write_text("mine")
    assert "4 files" in _fetch()
    assert _there(FOLDER) == {**FILES, "mine.txt": b"mine"}


@pytest.mark.parametrize("name", [LARGE, "README.md"])
def test_a_download_that_is_not_what_the_hub_lists_is_refused(hub, name):
    hub.served[Path(name).name] = b"x" * len(FILES[name])
    _refused(f"{name}: its hash is")
    assert name not in _there(FOLDER)
    hub.served.clear()
    assert "4 files" in _fetch()


def test_an_interrupted_fetch_is_resumed(hub):
    hub.refusals[f"{COMMIT}/{LARGE}"] = (403, "")
    _refused("dataset owner/films: could not be fetched")
    complete = [name for name in FILES if (FOLDER / name).is_file()]
    hub.refusals.clear()
    hub.asked.clear()
    assert "4 files" in _fetch() and _there(FOLDER) == FILES
    assert not [path for path in hub.asked if any(path.endswith(f"/{name}") for name in complete)]


def test_patterns_and_revision_are_pinned(hub):
    assert "2 files" in _fetch(patterns=["*.csv"], revision="v1")
    assert set(_there(FOLDER)) == {"data/entity2id.csv", LARGE}
    assert "2 files" in _fetch(revision=COMMIT)
    pinned = f"films.lock.json pins dataset owner/films at commit {COMMIT}, --include ['*.csv']"
    _refused(pinned, patterns=["*.md"])


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((403, "GatedRepo"), "gated; accept its terms"),
        ((401, "RepoNotFound"), "check the name (OWNER/NAME)"),
        ((404, "RevisionNotFound"), "dataset owner/films: it has no branch, tag or commit v9"),
    ],
)
def test_refusals_of_the_hub_are_reported(hub, refusal, words):
    hub.refusals["owner/films"] = refusal
    _refused(words, revision="v9")


def test_wrong_requests_are_reported(hub, monkeypatch):
    _refused("model owner/films: not found", kind="model")
    _refused("dataset a/b/c:", name="a/b/c")
    _refused("--include ['*.zip']: matches none of the 4 files", patterns=["*.zip"])
    hub.stand_in(monkeypatch, "http://127.0.0.1:9")
    _refused("could not be fetched from http://127.0.0.1:9")
    assert list(Path().glob("films*")) == []


def test_other_files_and_damaged_locks_are_left_alone(hub):
    FOLDER.mkdir()
    (FOLDER / "x").write_text("mine")
    _refused("already contains files")
    for content in ("{", '{"kind": "dataset"}', "[]"):
        lock_path(FOLDER).write_text(content)
        _refused("not a lock file of `convrec data fetch`")
    assert _there(FOLDER) == {"x": b"mine"}


def test_the_license_of_a_model_is_told(hub):
    assert model_license("owner/open", None) == "apache-2.0"
    hub.card = {}
    assert model_license("owner/open", "b" * 40) == "not stated"


def test_preflight_checks_every_model_of_the_parameters(hub, tmp_path, make_store):
    make_store(tmp_path)
    hub.refusals["owner/gated"] = (403, "GatedRepo")
    names = {"base_model.name": "owner/gated", "demonstrations.embedder.name": "owner/open"}
    settings = {**names, "rank_grpo.start": f"owner/open@{COMMIT}"}
    params = with_settings(load_params(ROOT / "params.yaml"), settings)
    checks = (check for make in CHECKS for check in make(params, Paths(tmp_path)))
    refused, open_one, start = [(check.found, check.remedy) for check in checks if check.name == "model"]
    assert refused[0] == "owner/gated cannot be fetched" and "model owner/gated: gated; accept its terms" in refused[1]
    assert open_one == ("owner/open: license apache-2.0; no revision is pinned", "")
    assert start == (f"owner/open: license apache-2.0; {COMMIT}", "")
