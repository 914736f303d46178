"""A service and its registry during online experiments: routing, records, and a challenger that cannot be loaded."""

import asyncio
import re
from collections.abc import Iterator

import httpx
import mlflow
import pytest

from convrec.project.errors import InputError
from convrec.registry.experiment import end_experiment, start_experiment
from convrec.registry.recommenders import RegistrySource
from convrec.service.app.metrics import Metrics
from convrec.service.app.service import Limits, Service
from convrec.service.arms import Experiment, arm_of
from convrec.service.feedback import FeedbackRecorder
from convrec.service.feedback.store import FeedbackStore
from convrec.service.live import LiveModels
from convrec.service.recommender import Recommender
from convrec.service.served import ServedModel
from tests.registry.registered import add_version, promote_in_turn
from tests.service.app.serving import serve
from tests.service.feedback.conftest import until
from tests.service.recommending import served

USERS = [f"user {number}" for number in range(10)]
pytestmark = pytest.mark.usefixtures("in_registry")


@pytest.fixture(scope="module")
def client(client) -> mlflow.MlflowClient:
    """Three versions: the first is the champion, the third has no files."""
    add_version(client)
    return client


@pytest.fixture(scope="module")
def url(folder) -> str:
    return f"sqlite:///{folder}/feedback.db"


@pytest.fixture(scope="module")
def service(client, folder, url) -> Iterator[Service]:
    """A service that follows the registry and records feedback."""

    metrics = Metrics()
    source = RegistrySource(None, "none", lambda version, files: served(version, Recommender.load(files)))
    models = LiveModels(source, 0.05, lambda _: metrics.load_failures.inc())
    models.start(is_required=True)
    recorder = FeedbackRecorder(folder / "journal", url)
    yield Service(models, Limits(), metrics, recorder, lambda: source.experiment)
    recorder.close()


@pytest.fixture(scope="module")
def http(service) -> Iterator[httpx.Client]:
    """A client of the service."""
    with (
        serve(service, has_page=False) as running,
        httpx.Client(base_url=f"http://127.0.0.1:{running.port}", timeout=30) as http,
    ):
        yield http


def _metric(http: httpx.Client, name: str) -> float:
    return float(re.search(rf"^convrec_{re.escape(name)} (.*)$", http.get("/metrics").text, re.MULTILINE)[1])


def _wait_for_state(http: httpx.Client, running: int, ready: int) -> None:
    until(lambda: (_metric(http, "experiment_running"), _metric(http, "experiment_ready")) == (running, ready))


@pytest.fixture
def experiment(http, client) -> Iterator[Experiment]:
    """A test of version 2 that the service knows, until the end of the test."""
    started = start_experiment(client, "2", 0.5, "ops")
    _wait_for_state(http, running=1, ready=1)
    yield started
    end_experiment(client, started.id, "enough", "ops")
    _wait_for_state(http, running=0, ready=0)


def _ask(http: httpx.Client, user: str | None) -> dict:
    reply = http.post("/recommend", json={"conversation": "a film with heists please", "n": 4, "user_id": user})
    assert reply.status_code == 200
    return reply.json()


def _recorded(url: str, answers: list[dict]) -> list[dict]:
    """Return the shown items of these answers once they are in the database."""
    ids, store = {answer["answer_id"] for answer in answers}, FeedbackStore(url)
    until(lambda: ids <= set(store.answers()["answer_id"]))
    return [row for row in store.shown().iter_rows(named=True) if row["answer_id"] in ids]


def test_an_ab_test_from_start_to_end(http, client, url):
    assert "arm" not in _ask(http, USERS[0])
    experiment = start_experiment(client, "2", 0.5, "ops")
    _wait_for_state(http, running=1, ready=1)
    answers = {user: _ask(http, user) for user in USERS}
    for user, answer in answers.items():
        assert answer["arm"] == arm_of(experiment, user, "")
        assert answer["version"] == {"champion": "1", "challenger": "2"}[answer["arm"]]
        again = _ask(http, f"\ufeff{user} ")
        assert (again["arm"], again["recommendations"]) == (answer["arm"], answer["recommendations"])
    assert {answer["arm"] for answer in answers.values()} == {"champion", "challenger"}
    anonymous = _ask(http, None)
    assert anonymous["arm"] == arm_of(experiment, None, anonymous["answer_id"])
    rows = _recorded(url, list(answers.values()))
    by_id = {answer["answer_id"]: (user, answer) for user, answer in answers.items()}
    for row in rows:
        user, answer = by_id[row["answer_id"]]
        assert (row["experiment"], row["arm"], row["version"]) == (experiment.id, answer["arm"], answer["version"])
        assert row["user_id"] == user
    end_experiment(client, experiment.id, "enough", "ops")
    _wait_for_state(http, running=0, ready=0)
    assert "arm" not in _ask(http, USERS[0])


def test_a_failing_challenger_costs_no_answer(http, experiment, url, monkeypatch):
    """What the champion answers for it counts as an answer without items; a wrong question counts in neither arm."""
    ask = ServedModel.ask

    async def fail(model, *arguments, **options):
        if model.version == "2":
            raise RuntimeError("the engine has stopped")
        return await ask(model, *arguments, **options)

    failures = _metric(http, "experiment_failures_total")
    monkeypatch.setattr(ServedModel, "ask", fail)
    answers = {user: _ask(http, user) for user in USERS}
    lost = [user for user, answer in answers.items() if "arm" not in answer]
    assert lost == [user for user in USERS if arm_of(experiment, user, "") == "challenger"]
    assert {answer["version"] for answer in answers.values()} == {"1"}
    for user in USERS:
        assert http.post("/recommend", json={"conversation": "a film", "n": 99, "user_id": user}).status_code == 400
    assert _metric(http, "experiment_failures_total") == failures + len(lost)
    counted = [(user, "challenger", 0) if user in lost else (user, "champion", 4) for user in USERS]
    assert _counted(url, experiment, USERS) == counted


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_question_that_one_arm_alone_rejects_counts_against_it(http, service, experiment, url, monkeypatch, version):
    """In the arm of the version, each answer counts without items, whichever arm it is."""
    prepare = ServedModel.prepare

    async def reject(model, *arguments, **options):
        if model.version == version:
            raise InputError("too long")
        return await prepare(model, *arguments, **options)

    add_answer, is_on_loop = service.recorder.add_answer, []

    def add(answer):
        is_on_loop.append(asyncio._get_running_loop() is not None)
        return add_answer(answer)

    monkeypatch.setattr(ServedModel, "prepare", reject)
    monkeypatch.setattr(service.recorder, "add_answer", add)
    question = {"conversation": "a film please", "n": 4}
    asked = {user: http.post("/recommend", json={**question, "user_id": user}) for user in USERS}
    arms = {user: arm_of(experiment, user, "") for user in USERS}
    failing = {"1": "champion", "2": "challenger"}[version]
    assert _counted(url, experiment, USERS) == [(user, arms[user], 0 if arms[user] == failing else 4) for user in USERS]
    refused = [user for user in USERS if asked[user].status_code == 400]
    assert refused == [user for user in USERS if version == "1" and arms[user] == failing]
    assert is_on_loop and not any(is_on_loop)


@pytest.mark.parametrize("user", ["", "anonymous", " NULL\u200b", "unknown"])
def test_users_without_a_name_of_their_own_are_not_one_user(http, experiment, url, user):
    answers = [_ask(http, user) for _ in range(10)]
    for answer in answers:
        assert answer["arm"] == arm_of(experiment, None, answer["answer_id"])
    assert {row["user_id"] for row in _recorded(url, answers)} == {None}


def _counted(url: str, experiment: Experiment, users: list[str]) -> list[tuple[str, str, int]]:
    """Return user, arm and number of items of an experiment's answers, once there is one of each user."""
    store = FeedbackStore(url)
    until(lambda: set(store.answers(experiment=experiment.id)["user_id"]) == set(users))
    found = store.answers(experiment=experiment.id).select("user_id", "arm", "num_items").rows()
    return sorted(found, key=lambda row: users.index(row[0]))


def test_an_answer_that_is_too_late_counts_without_items(http, service, experiment, url, monkeypatch):
    """A slow challenger's late answers left no record, so that only its quick ones counted."""

    async def wait(*_, **__):
        await asyncio.Event().wait()

    late = [user for user in USERS if arm_of(experiment, user, "") == "challenger"]
    monkeypatch.setattr(ServedModel, "ask", wait)
    monkeypatch.setattr(service, "limits", Limits(max_seconds=0.05))
    for user in late:
        assert http.post("/recommend", json={"conversation": "a film please", "user_id": user}).status_code == 504
    assert _counted(url, experiment, late) == [(user, "challenger", 0) for user in late]


def test_a_challenger_that_cannot_be_loaded_costs_no_answer(http, client, url):
    failures = _metric(http, "model_load_failures_total")
    experiment = start_experiment(client, "3", 0.9, "ops")
    until(lambda: _metric(http, "model_load_failures_total") == failures + 1)
    _wait_for_state(http, running=1, ready=0)
    answers = [_ask(http, user) for user in USERS]
    assert all("arm" not in answer and answer["version"] == "1" for answer in answers)
    assert {row["experiment"] for row in _recorded(url, answers)} == {None}
    end_experiment(client, experiment.id, "cannot be loaded", "ops")
    _wait_for_state(http, running=0, ready=0)


def test_a_promotion_ends_the_counting(http, client):
    start_experiment(client, "2", 0.5, "ops")
    _wait_for_state(http, running=1, ready=1)
    promote_in_turn(client, "2")
    _wait_for_state(http, running=0, ready=0)
    for user in USERS:
        answer = _ask(http, user)
        assert answer["version"] == "2" and "arm" not in answer
