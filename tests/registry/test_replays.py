"""`convrec replay` and its promotion gate: real versions, their real lists, answers in a real database."""

import contextlib
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import mlflow
import numpy as np
import pytest
from ruamel.yaml import YAML

from convrec import tracking
from convrec.config.params import load_params
from convrec.data.catalog import Catalog
from convrec.feedback.records import Answer, Event, Shown, new_answer_id
from convrec.feedback.store import FeedbackStore
from convrec.files.yaml import read_commented_yaml
from convrec.generation.lists import EngineOptions
from convrec.monitoring.replay import Answered, challenger_lists
from convrec.paths import Paths
from convrec.registry.promote import promote
from convrec.registry.versions import MODEL_NAME, download_version
from tests.registry.registered import SIZE, make_workspace, promote_in_turn, register_model

EXPLORE, PROMPTS = 0.5, 8
SAID = [[{"role": "user", "content": f"a film with heists please, number {number}"}] for number in range(PROMPTS)]


@pytest.fixture(scope="module")
def made(make_store, tmp_path_factory) -> Path:
    """A workspace with a champion, version 1, and two challengers; the last has the champion's weights."""
    folder = make_workspace(tmp_path_factory.mktemp("replays"))
    client = make_store(folder)
    with contextlib.chdir(folder):
        for place, seed in enumerate((0, 1, 0)):
            register_model(client, folder / f"version-{place}", seed)
        promote_in_turn(client, "1")
        _log_answers()
    return folder


@pytest.fixture
def client(made, tmp_path, monkeypatch) -> mlflow.MlflowClient:
    """The store of a copy of that, entered."""
    shutil.copytree(made, tmp_path / "project", ignore=shutil.ignore_patterns("version-*", "artifacts"))
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.delenv("CONVREC_FEEDBACK_URL", raising=False)
    tracking.connect()
    return mlflow.MlflowClient()


def _lists(version: str, **filters: tuple[str, ...]) -> list[list[str]]:
    model = download_version(f"models:/{MODEL_NAME}/{version}")
    engine = EngineOptions.on_this_machine(**load_params().engine_options())
    asked = [Answered("", False, messages, [""] * SIZE, [], [], **filters) for messages in SAID]
    return challenger_lists(asked, model.checkpoint, Catalog.read(model.catalog), model.settings, engine)


def _log_answers() -> None:
    """Write 400 answers of version 1 with exploration; users accept what version 2 lists for their conversation."""
    rng, own, liked = np.random.default_rng(0), _lists("1"), _lists("2")
    answers, events = [], []
    for number in range(400):
        prompt, time = number % PROMPTS, datetime.now(UTC) - timedelta(minutes=number + 1)
        is_explored = bool(rng.random() < EXPLORE)
        order = rng.permutation(SIZE) if is_explored else np.arange(SIZE)
        chances = [(1 - EXPLORE) * (place == rank) + EXPLORE / SIZE for rank, place in enumerate(order)]
        items = [own[prompt][place] for place in order]
        shown = tuple(Shown("", rank, *pair) for rank, pair in enumerate(zip(items, "1111", chances, strict=True), 1))
        one = new_answer_id(time)
        answers.append(Answer(one, time, f"u{number // 2}", None, None, is_explored, 0.1, SAID[prompt], shown))
        events += [
            Event(f"{one}{place}", one, "", item, "accepted", time)
            for place, item in enumerate(items)
            if item in liked[prompt] and rng.random() < 0.8 / (place + 1)
        ]
    store = FeedbackStore(f"sqlite:///{Path('feedback/feedback.db').absolute()}")
    assert not store.write(answers, events)
    store.close()


def test_a_replay_is_printed_written_and_recorded(client, cli):
    ended = cli("replay", "--version", "3", "--window", "2d")
    assert ended.status == 0 and "doubly robust" in ended.out and "Effective number of answers: " in ended.out
    written = json.loads(Path("evaluations/replay-version-3.json").read_text())
    assert (written["answers"], written["persons"], written["champion_version"]) == (400, 200, "1")
    assert written["without_support"] == 0, "the champion's own lists"
    gain = written["differences"]["dr"]
    assert gain["low"] <= 0 <= gain["high"]
    run = client.get_run(client.get_model_version(MODEL_NAME, "3").run_id)
    assert run.data.metrics["replay/difference_mean"] == pytest.approx(gain["mean"], abs=1e-5)
    assert mlflow.artifacts.load_dict(f"runs:/{run.info.run_id}/replay/replay.json")["version"] == "3"


def test_a_version_whose_lists_users_want_is_better(client, cli):
    """The share of its lists that was never shown is accepted, too; the logs do not show that, but q guesses some."""
    found = json.loads(cli("replay", "--version", "2", "--json").out)
    listed = [set(items) for items in _lists("1")]
    unseen = [item not in listed[prompt] for prompt, items in enumerate(_lists("2")) for item in items]
    assert found["without_support"] == pytest.approx(np.mean(unseen), abs=1e-6)
    assert found["effective_size"] < 400


def test_lists_keep_to_the_filters_of_the_users(client):
    free = _lists("2")
    denied = tuple(free[0][:2])
    without = _lists("2", denied=denied, allowed=None)
    assert all(len(items) == SIZE and not set(items) & set(denied) for items in without)
    allowed = tuple(free[0][1:4])
    assert [set(items) for items in _lists("2", allowed=allowed, denied=(allowed[0], "gone"))] == [
        set(allowed[1:])
    ] * len(free)
    assert _lists("2", allowed=allowed, denied=allowed) == [[]] * len(free)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--version", "1"], "--version 1: it is the champion already"),
        (["--version", "9"], "models:/convrec-recommender/9: not in the registry"),
        (["--version", "x"], "--version x: give the number of a version"),
        (["--window", "30"], "30: give days from 1d to 3660d, such as 30d"),
        (["--until", "2022-13-01"], "2022-13-01: "),
        (["--until", "2022-01-01"], "replay: no answers were recorded from 2021-12-02 to 2022-01-01"),
        (["--feedback", "mysql://x"], "feedback database 'mysql' is not supported"),
        (["--feedback", "sqlite:///none.db"], "none.db: no feedback was recorded; `convrec serve` records it"),
    ],
)
def test_mistakes_are_told(client, cli, words, message):
    ended = cli("replay", *words)
    assert ended.status == 2 and message in ended.err and ended.err.count("\n") == 1
    assert not Path("none.db").exists()


def test_without_a_champion_there_is_nothing_to_replay(client, cli):
    client.delete_registered_model_alias(MODEL_NAME, "champion")
    assert "no version is the champion" in cli("replay", "--version", "2").err


def _promote(rule: dict) -> dict[str, tuple[float | None, bool, str]]:
    policy = read_commented_yaml(Path("promotion.yaml"))
    policy["replay"], policy["guard_rails"] = {"window_days": 30, **rule}, {}
    YAML().dump(policy, Path("promotion.yaml"))
    decision = promote(load_params(), Paths(), "3", dry_run=True)
    return {gate.name: (gate.figure, gate.passed, gate.detail) for gate in decision.gates if "replay" in gate.name}


def test_the_gate_reads_the_logged_answers(client):
    gates = _promote({"min": -1.0, "min_effective_size": 50.0})
    gain, size, support = gates.values()
    assert gain[1] and "accepted items per answer" in gain[2]
    assert size[1] and size[0] > 50 and size[2] == "of 400 answers"
    assert support[:2] == (0.0, True), "the champion's own lists"
    assert [passed for _, passed, _ in _promote({"min": 0.5, "min_effective_size": 401.0}).values()] == [
        False,
        False,
        True,
    ]


def test_the_gate_fails_without_answers_and_says_why(client, monkeypatch):
    monkeypatch.setenv("CONVREC_FEEDBACK_URL", "sqlite:///none.db")
    for figure, passed, detail in _promote({"min": -1.0, "min_effective_size": 1.0}).values():
        assert figure is None and not passed and detail.startswith("none.db: no feedback was recorded")
