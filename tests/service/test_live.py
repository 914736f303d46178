"""Models that change while they are used."""

import asyncio
import threading
import time
import weakref

import pytest

from convrec.project.errors import InputError, Unavailable
from convrec.service.live import LiveModels
from convrec.service.served import ServedModel
from tests.service.recommending import LOOP, make_recommender, served

RECOMMENDER = make_recommender()


class Registry:
    """A source whose champion can be moved; its versions are the same model."""

    def __init__(self) -> None:
        self.champion: str | Exception = "1"
        self.broken: dict[str, Exception] = {}
        self.loaded: list[str] = []
        self.failures: list[str] = []

    def wanted(self) -> dict[str, str]:
        if isinstance(self.champion, Exception):
            raise self.champion
        return {"champion": self.champion}

    def load(self, version: str) -> ServedModel:
        self.loaded.append(version)
        if version in self.broken:
            raise self.broken[version]
        model = served(version, RECOMMENDER)
        model.warm()
        return model


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def models(registry):
    made = LiveModels(registry, 0.01, registry.failures.append)
    yield made
    made.close()


def _version(models: LiveModels) -> str:
    return models.roles["champion"].version


def test_a_used_version_answers_until_its_last_request_and_is_then_freed(models, registry):
    models.start(is_required=True)
    before = models.current()
    registry.champion = "2"
    while _version(models) != "2":
        time.sleep(0.005)
    answered = asyncio.run(before["champion"].ask("a film", n=3))
    assert len(answered.items) == 3 and before["champion"].version == "1" and registry.loaded == ["1", "2"]
    freed = threading.Event()
    weakref.finalize(before["champion"], freed.set)
    del before
    assert freed.wait(30) and models.is_ready
    models.close()
    registry.champion = "1"
    models.update()
    assert _version(models) == "1" and registry.loaded == ["1", "2", "1"]


def test_the_log_names_what_is_served(models, registry, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(registry, "wanted", lambda: {"champion": "3", "demo": "demo"})
    models.start(is_required=True)
    assert "champion is version 3" in caplog.text and "demo is loaded" in caplog.text


@pytest.mark.parametrize("error", [InputError("weights: damaged"), RuntimeError("a defect")])
def test_a_version_that_fails_leaves_the_champion_and_is_retried(models, registry, error, caplog):
    models.update()
    registry.champion, registry.broken = "2", {"2": error}
    for _ in range(3):
        models.update()
    assert _version(models) == "1" and registry.failures == ["2"]
    (alarm,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert alarm.getMessage().startswith(f"version 2 cannot be served ({error}); the models so far stay, next try in")
    assert models.is_ready and (alarm.exc_info is None) == isinstance(error, InputError)
    models._retry_at.clear()
    models.update()
    assert registry.failures == ["2", "2"]
    registry.broken = {}
    models._retry_at.clear()
    models.update()
    assert _version(models) == "2"


def test_without_the_registry_everything_stays_and_is_logged_once(models, registry, caplog):
    models.start(is_required=True)
    registry.champion = Unavailable("the server is away")
    asked = threading.Event()
    wanted = registry.wanted
    registry.wanted = lambda: (asked.set(), wanted())[1]
    for _ in range(5):
        asked.clear()
        assert asked.wait(30)
    assert _version(models) == "1" and caplog.text.count("the models stay as they are: the server is away") == 1
    registry.wanted, registry.champion = wanted, "2"
    while _version(models) != "2":
        assert asked.wait(30)


def test_a_service_waits_for_its_first_model_and_a_pinned_one_is_required(models, registry):
    registry.champion = InputError("no version is the champion")
    with pytest.raises(InputError, match="no version is the champion"):
        models.start(is_required=True)
    registry.champion, registry.broken = "2", {"2": InputError("weights: damaged")}
    with pytest.raises(InputError, match="weights: damaged"):
        models.start(is_required=True)
    assert not models.is_ready
    with pytest.raises(Unavailable, match="no model is loaded yet"):
        models.current()


def test_a_version_whose_chat_template_loops_is_given_up_and_stopping_waits_for_none(registry):
    """Such a version stopped the following for ever, and SIGTERM waited for it."""
    load, loading = registry.load, threading.Event()

    def load_looping(version):
        if version == "2":
            loading.set()
            make_recommender().translator.tokenizer.apply_chat_template([], chat_template=LOOP)
        return load(version)

    registry.load = load_looping
    models = LiveModels(registry, 0.01, registry.failures.append, load_seconds=0.2)
    models.start(is_required=True)
    registry.champion = "2"
    while registry.failures != ["2"]:
        assert not loading.is_set() or models.is_ready
        time.sleep(0.01)
    registry.champion = "3"
    while _version(models) != "3":
        time.sleep(0.01)
    loading.clear()
    models._retry_at.clear()
    models._load_seconds = 600
    registry.champion = "2"
    assert loading.wait(30)
    models.close()
    for thread in threading.enumerate():
        if thread.name in ("models", "call"):
            thread.join(30)
            assert not thread.is_alive()
