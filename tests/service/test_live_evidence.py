"""Live evidence: a service whose lists follow what users accept."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from string import ascii_lowercase

import pytest

from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.evidence import Evidence
from convrec.classical.guidance import Guidance
from convrec.service import live_evidence
from convrec.service.feedback import Event, FeedbackStore, new_answer_id
from convrec.service.live_evidence import LiveEvidence
from tests.answers import NOON, make_answer
from tests.generation.vocabularies import by_item
from tests.rows import make_row
from tests.service.app.process import running_service
from tests.service.feedback.conftest import until
from tests.service.recommending import CATALOG, TITLES, make_recommender

ROCKY, JAWS, ALIEN, HEAT = (CATALOG.items[TITLES.index(title)] for title in ("Rocky", "Jaws", "Alien", "Heat"))
ROWS = [
    make_row("a", [("Heat", 1975), ("Up", 1981)], "a heist film", user_id="ann"),
    make_row("b", [("Heat", 1975), ("Her", 1978)], "a film with heists", user_id="bob"),
    make_row("c", [("Alien", 1984)], "space please", user_id="cid"),
]


def _guidance() -> Guidance:
    evidence = Evidence.fit(ROWS, CATALOG, TfidfEmbedder, neighbours=5, kept=10)
    return Guidance(evidence, {"neighbours": 8.0, "popularity": 1.0}, {"name": "tfidf"})


class Users:
    """Writes answers and events to a database, as users of a service cause them: each list shows three items."""

    def __init__(self, store: FeedbackStore):
        self._store, self._minutes = store, 0

    def accept(self, user: str | None, item, event: str = "accepted", answer: str | None = None, version="1") -> str:
        """Write an event of an answer, by default a new one, and return the answer's id."""
        self._minutes += 1
        time = NOON + timedelta(minutes=self._minutes)
        own = {"answer_id": answer or new_answer_id(time), "user_id": user}
        made = make_answer(ALIEN.id, JAWS.id, ROCKY.id, time=time, version=version, **own)
        self._store.write([made], [Event(new_answer_id(time), made.answer_id, "", item.id, event, time)])
        return made.answer_id

    def all_accept(self, item, event: str = "accepted", names: str = "abcdefgh", **options) -> list[str]:
        return [self.accept(user, item, event, **options) for user in names]


@pytest.fixture
def store(tmp_path) -> Iterator[FeedbackStore]:
    with closing(FeedbackStore(f"sqlite:///{tmp_path}/feedback/feedback.db")) as opened:
        yield opened


@pytest.fixture
def users(store) -> Users:
    return Users(store)


@pytest.fixture
def failures() -> list[int]:
    return []


@pytest.fixture
def live(store, failures) -> LiveEvidence:
    return LiveEvidence(store, lambda: failures.append(1))


RECOMMENDER = make_recommender(guide=_guidance())


@pytest.fixture
def translator():
    RECOMMENDER.translator.guide = _guidance()
    return RECOMMENDER.translator


def _weight(translator, item) -> float:
    (request,) = translator.guided(translator.prepare(["a film with heists please"], 3))
    return by_item(request.log_weights).get(CATALOG.items.index(item), 0.0)


def test_what_users_accept_is_evidence_until_they_take_it_back_or_are_deleted(store, users, live, translator):
    live.follow("1", translator)
    before = _weight(translator, ROCKY)
    accepted = users.all_accept(ROCKY)
    live.update()
    assert live.num_items == 8 and _weight(translator, ROCKY) > before + 5
    for user, answer in zip("abcd", accepted[:4], strict=True):
        users.accept(user, ROCKY, "withdrawn", answer=answer)
    for user in "efgh":
        store.delete_user(user)
    live.update()
    assert live.num_items == 0 and _weight(translator, ROCKY) == before
    for item, event in ((ROCKY, "rejected"), (JAWS, "watched"), (JAWS, "rejected")):  # each of other answers
        users.all_accept(item, event, "ijklmnop")
    live.update()
    assert live.num_items == 8 and _weight(translator, ROCKY) == before < _weight(translator, JAWS)


def test_few_users_and_answers_without_a_user_change_nothing(users, live, translator):
    live.follow("1", translator)
    before = _weight(translator, ROCKY)
    for user in [None] * 20 + ["a"] * 20 + ["b", "c"]:
        users.accept(user, ROCKY)
    live.update()
    assert _weight(translator, ROCKY) == before
    users.all_accept(ROCKY)
    live.update()
    assert _weight(translator, ROCKY) > before


def test_a_version_learns_from_its_own_lists(users, live, translator):
    """What an earlier version showed may be in the training data of a later one."""
    users.all_accept(ROCKY, version="1")
    live.follow("2", translator)
    before = _weight(translator, ROCKY)
    assert live.num_items == 0
    users.all_accept(ROCKY, version="2")
    live.update()
    assert live.num_items == 8 and _weight(translator, ROCKY) > before


def test_items_that_were_not_shown_or_are_unknown_change_nothing(store, users, live, translator):
    live.follow("1", translator)
    before = _weight(translator, HEAT)
    for answer in users.all_accept(ALIEN, "clicked"):
        event = Event(f"e{answer}", answer, "", HEAT.id, "accepted", NOON)
        unknown = make_answer("gone", version="1", user_id=answer)
        store.write([unknown], [event, Event(f"f{answer}", unknown.answer_id, "", "gone", "accepted", NOON)])
    live.update()
    assert live.num_items == 0 and _weight(translator, HEAT) == before


def test_the_newest_answers_of_a_user_count(users, live, translator, monkeypatch):
    monkeypatch.setattr(live_evidence, "_ANSWERS", 2)
    live.follow("1", translator)
    for item in (ROCKY, JAWS, ALIEN):
        users.all_accept(item)
    live.update()
    assert live.num_items == 16


def test_a_database_that_fails_leaves_the_evidence_and_is_counted(tmp_path, users, live, translator, failures, caplog):
    users.all_accept(ROCKY)
    live.follow("1", translator)
    guide = translator.guide
    database = tmp_path / "feedback" / "feedback.db"
    database.rename(tmp_path / "away")
    for _ in range(2):
        live.update()
    assert translator.guide is guide and guide.live.any() and failures == [1, 1]
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert line.startswith("the evidence stays as it is: feedback database sqlite:///")
    (tmp_path / "away").rename(database)
    users.all_accept(JAWS)
    live.update()
    assert translator.guide is not guide and failures == [1, 1]


def test_an_answer_has_the_evidence_of_one_moment(users, live, translator, monkeypatch):
    """An update in the middle of a request changes the next one."""
    live.follow("1", translator)
    before = _weight(translator, ROCKY)
    users.all_accept(ROCKY)
    terms = Evidence.terms

    def meanwhile(self, *arguments, **options):
        live.update()
        return terms(self, *arguments, **options)

    monkeypatch.setattr(Evidence, "terms", meanwhile)
    assert _weight(translator, ROCKY) == before < _weight(translator, ROCKY)


@pytest.mark.parametrize("guide", [None, lambda prompts: [{} for _ in prompts]])
def test_a_version_that_feedback_cannot_change_is_logged(live, translator, guide, caplog):
    translator.guide = guide
    live.follow("7", translator)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith("--evidence live: no evidence guides the lists of version 7 ")
    live.update()
    assert translator.guide is guide


@pytest.mark.slow
def test_a_service_follows_its_database(project, tmp_path):
    """`convrec serve --evidence live` as a process: its own feedback, and a database that is away."""
    folder = Path(shutil.copytree(project, tmp_path / "project"))
    _guidance().save(folder / "models" / "guidance")
    with running_service(folder, "--model", "model", "--evidence", "live") as service:
        last = service.ask(n=15, user_id="other").json()["recommendations"][-1]["item_id"]
        assert "feedback guides the lists of version model" in service.log.read_text()
        told = [service.ask(n=15, user_id=user).json()["answer_id"] for user in ascii_lowercase]  # before all events
        for answer in told:
            event = {"answer_id": answer, "item_id": last, "event": "accepted"}
            assert service.client.post("/feedback", json=event).status_code == 200
        until(lambda: service.metric("convrec_evidence_items") == 26)
        until(lambda: service.ask().json()["recommendations"][0]["item_id"] == last)
        (folder / "feedback" / "feedback.db").rename(folder / "away.db")
        until(lambda: service.metric("convrec_evidence_failures_total") > 0)
        assert service.ask().json()["recommendations"][0]["item_id"] == last, "the evidence stays"
        assert service.stop() == 0


def test_live_evidence_needs_feedback_and_guidance(project, monkeypatch, cli):
    monkeypatch.chdir(project)
    refused = cli("serve", "--evidence", "live", "--feedback", "none")
    assert (refused.status, refused.out) == (2, "") and "leave out `--feedback none`" in refused.err
    refused = cli("serve", "--evidence", "live", "--model", "model", "--port", "0")
    assert refused.status == 2 and "version model (docs/guidance.md); leave out the option, or serve" in refused.err
