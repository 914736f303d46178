"""Questions that wait, questions whose client leaves, and what else is asked meanwhile."""

import threading
from collections.abc import Iterator

import pytest

from convrec.data.mentions import Mentions
from convrec.serving.recommender import Abandoned
from tests.serving.app.serving import Served, answer, serve
from tests.serving.recommending import CATALOG

NUM_QUESTIONS = 200


class Slow:
    """Answers a conversation when it is let; counts those that were begun."""

    catalog, noun, mentions = CATALOG, "films", Mentions(CATALOG)

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.dropped: list[str] = []
        self.asked = threading.Semaphore(0)
        self.may_answer, self.has_dropped = threading.Event(), threading.Event()

    def knows(self, title: str) -> bool:
        return True

    def recommend(self, conversations, n, deny, allow, is_abandoned, or_fewer):
        self.begun += conversations
        self.asked.release()
        while not self.may_answer.wait(0.005):
            if is_abandoned():
                self.dropped += conversations
                self.has_dropped.set()
                raise Abandoned
        return [[]]


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def served(slow) -> Iterator[Served]:
    with serve({"champion": slow}) as running:
        yield running
        slow.may_answer.set()


def _wait_for(served: Served, num_connections: int) -> None:
    """Return when the server has closed all but these connections."""
    while served.num_connections > num_connections:
        assert served.get("/api/models")[0] == 200


def test_all_else_is_answered_while_questions_wait(served, slow):
    asked = [served.ask(conversation=str(number)) for number in range(NUM_QUESTIONS)]
    slow.asked.acquire(timeout=30)
    for path in ("/api/models", "/nowhere"):
        assert served.get(path)[0] in (200, 404)
    assert slow.begun == ["0"]
    slow.may_answer.set()
    for connection in asked:
        with connection:
            assert answer(connection)[0] == 200
    assert sorted(slow.begun, key=int) == [str(number) for number in range(NUM_QUESTIONS)]


def test_abandoned_questions_are_dropped(served, slow):
    asked = [served.ask(conversation=word) for word in ("under way",)]
    assert slow.asked.acquire(timeout=30)
    asked += [served.ask(conversation=word) for word in ("waiting", "patient")]
    assert served.get("/api/models")[0] == 200  # connections are accepted in their order
    asked[1].close()
    _wait_for(served, 2)
    asked[0].close()
    assert slow.asked.acquire(timeout=30)
    slow.may_answer.set()
    with asked[2] as patient:
        assert answer(patient)[0] == 200
    assert (slow.begun, slow.dropped) == (["under way", "patient"], ["under way"])


def test_an_interrupted_server_waits_for_no_answer(slow, monkeypatch):
    monkeypatch.setattr("convrec.serving.app.server._STOP_SECONDS", 0.1)
    with serve({"champion": slow}) as served, served.ask(conversation="long") as connection:
        assert slow.asked.acquire(timeout=30)
        served.server.should_exit = True
        assert answer(connection) == (503, {"error": "the server is shutting down; try again later"})
    assert slow.has_dropped.wait(30) and slow.dropped == ["long"]
