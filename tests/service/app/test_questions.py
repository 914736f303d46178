"""Questions that wait, questions whose client leaves, and what else is asked meanwhile."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from convrec.service.app.service import Limits
from convrec.service.served import ServedModel
from convrec.service.translation import Prepared
from tests.service.app.serving import Served, answer, make_service, serve
from tests.service.recommending import make_recommender

NUM_QUESTIONS = 150
RECOMMENDER = make_recommender()


class Gated:
    """Gives every request the same list, one request at a time, when it is let."""

    is_alive = True

    def __init__(self) -> None:
        (asked,) = RECOMMENDER.translator.prepare(["a film"], 1)
        (self.tokens,) = RECOMMENDER.complete([asked])
        self.begun: list[str] = []
        self.dropped: list[str] = []
        self.asked, self.may_answer, self.has_dropped = threading.Semaphore(0), threading.Event(), threading.Event()
        self._turn = asyncio.Lock()

    async def complete(self, asked: Prepared) -> list[int]:
        words = asked.row["messages"][0]["content"]
        async with self._turn:
            self.begun.append(words)
            self.asked.release()
            try:
                while not self.may_answer.is_set():
                    await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                self.dropped.append(words)
                self.has_dropped.set()
                raise
        return self.tokens


@pytest.fixture
def gate() -> Gated:
    return Gated()


@pytest.fixture
def served(gate, request) -> Iterator[Served]:
    with serve(_service(gate, getattr(request, "param", Limits()))) as running:
        yield running
        gate.may_answer.set()


def _service(gate: Gated, limits: Limits = Limits()):  # noqa: B008  (frozen)
    return make_service({"champion": ServedModel("1", RECOMMENDER.translator, gate)}, limits=limits)


def test_all_else_is_answered_while_questions_wait(served, gate):
    asked = [served.ask(conversation=str(number), n=1) for number in range(NUM_QUESTIONS)]
    gate.asked.acquire(timeout=30)
    for path in ("/api/models", "/nowhere", "/health", "/ready"):
        assert served.get(path)[0] in (200, 404)
    assert len(gate.begun) == 1
    gate.may_answer.set()
    assert {answer(connection)[0] for connection in asked} == {200}
    assert sorted(gate.begun, key=int) == [str(number) for number in range(NUM_QUESTIONS)]


def test_abandoned_questions_are_dropped(served, gate):
    asked = [served.ask(conversation="under way", n=1)]
    assert gate.asked.acquire(timeout=30)
    asked += [served.ask(conversation=word, n=1) for word in ("waiting", "patient")]
    assert served.get("/api/models")[0] == 200  # connections are accepted in their order
    asked[1].close()
    while served.num_connections > 2:  # until the server has closed that one
        assert served.get("/api/models")[0] == 200
    asked[0].close()
    assert gate.asked.acquire(timeout=30)
    gate.may_answer.set()
    assert answer(asked[2])[0] == 200
    assert (gate.begun, gate.dropped) == (["under way", "patient"], ["under way"])


@pytest.mark.parametrize("served", [Limits(max_seconds=0.2)], indirect=True)
def test_a_late_question_gets_504_and_is_dropped(served, gate):
    status, told = answer(served.ask(conversation="late", n=1))
    assert (status, told) == (504, {"error": "there was no answer within 0.2 s; try again later, or with fewer items"})
    assert gate.has_dropped.wait(30) and gate.dropped == ["late"]


@pytest.mark.parametrize("served", [Limits(max_requests=3, max_seconds=20)], indirect=True)
def test_beyond_the_limit_clients_are_told_when_to_come_back(served, gate):
    asked = [served.ask(conversation=str(number), n=1) for number in range(3)]
    assert gate.asked.acquire(timeout=30)
    while b"convrec_requests_inside 3.0" not in served.text("/metrics"):
        pass
    with served.ask(conversation="one too many", n=1) as connection:
        head = connection.recv(65536)
    assert head.startswith(b"HTTP/1.1 429") and b"retry-after: 2\r\n" in head.lower()
    gate.may_answer.set()
    assert {answer(connection)[0] for connection in asked} == {200}
    assert answer(served.ask(conversation="again", n=1))[0] == 200
    assert b'convrec_requests_total{path="/api/recommend",status="429"} 1.0' in served.text("/metrics")


def test_a_stopped_server_waits_so_long_and_no_longer(gate):
    with serve(_service(gate), stop_seconds=1) as served:
        connection = served.ask(conversation="long", n=1)
        assert gate.asked.acquire(timeout=30)
        served.server.should_exit = True
        assert answer(connection) == (503, {"error": "the server is shutting down; try again later"})
        assert gate.has_dropped.wait(30) and gate.dropped == ["long"]
