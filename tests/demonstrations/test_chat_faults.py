"""Faults of a chat endpoint: which are passed over, which stop an ask, and what is kept then."""

import logging
import threading
import time
from types import SimpleNamespace

import pytest
import tenacity

from convrec.demonstrations import chat
from convrec.demonstrations.replies import Fault
from convrec.errors import InputError
from tests.demonstrations.chat_server import (
    ANSWERS,
    ASKED_FOR,
    BROKEN_JSON,
    COMPLETION_TOKENS,
    HANG,
    HTML,
    NO_CHOICES,
    NULL_CONTENT,
    PATIENCE,
    ChatServer,
    Reply,
    answered,
    completion,
    error,
    reported,
    sent,
    truncated,
    truncated_stream,
)

# An unclosed client, connection, database or event loop fails the test.
pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize(
    "fault",
    [
        error(429),
        error(429, {"Retry-After": "0"}),
        error(429, {"retry-after-ms": "5"}),
        error(429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        error(408),
        error(409),
        error(500),
        Reply(b"<html>bad gateway</html>", status=502, content_type="text/html"),
        HANG,
        BROKEN_JSON,
        truncated,
        truncated_stream,
        HTML,
        NO_CHOICES,
        NULL_CONTENT,
        sent(completion(["text"])),
        sent([1]),
        sent(None),
        sent({"error": {"message": "no worker is free"}}),
        Reply(status=204),
        Reply(b"no gzip", headers={"Content-Encoding": "gzip"}),
    ],
)
def test_each_passing_fault_is_recovered_from(connect, caplog, fault):
    with ChatServer([answered, fault]) as server:
        client = connect(server, timeout_seconds=0.5 if fault is HANG else 10.0, max_concurrency=1)
        start = time.monotonic()
        assert client.ask(ASKED_FOR[:3], "judge") == ANSWERS[:3]
        assert server.prompts == [ASKED_FOR[0], ASKED_FOR[1], ASKED_FOR[1], ASKED_FOR[2]], (
            "only what failed is asked again"
        )
        assert time.monotonic() - start < PATIENCE / 2, "a call that hangs is given up"
    usage = client.usage()["judge"]
    assert (usage["calls"], usage["retries"], usage["failed"]) == (3, 1, 0)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and "judge: faults: 1 x " in warnings[0].message


def test_a_lost_connection_is_recovered_from(connect):
    with ChatServer() as server:
        url = server.url
    client = connect(SimpleNamespace(url=url), max_failed=1.0)
    assert client.ask(ASKED_FOR[:2], "judge") == [None, None]
    assert client.usage()["judge"]["retries"] == 4, "two each"


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_stops_at_once(connect, status):
    with ChatServer(lambda asked: error(status)) as server:
        with pytest.raises(InputError, match=f"OPENAI_API_KEY.*{status}: a scripted fault") as caught:
            connect(server, max_concurrency=1, max_failed=1.0).ask(ASKED_FOR, "judge")
        assert f"demonstrations.teacher.base_url = {server.url!r}" in str(caught.value)
        assert len(server.asked) == 1


def test_an_unknown_model_stops_at_once(connect):
    with ChatServer([answered, error(404)]) as server:
        with pytest.raises(InputError, match="demonstrations.teacher.model = 'some-model'") as caught:
            connect(server, max_concurrency=1, max_failed=1.0).ask(ASKED_FOR, "judge")
        assert f"demonstrations.teacher.base_url = {server.url!r}" in str(caught.value)
        assert "1 of 8 prompts are kept" in str(caught.value)
        assert len(server.asked) == 2


@pytest.mark.parametrize("status", [400, 422, 413])
def test_a_prompt_that_the_endpoint_will_not_have_fails_alone(connect, status):
    with ChatServer(lambda asked: error(status) if asked.prompt == ASKED_FOR[3] else answered(asked)) as server:
        client = connect(server, max_failed=1 / 8)
        assert client.ask(ASKED_FOR, "judge") == ANSWERS[:3] + [None] + ANSWERS[4:]
        assert server.prompts.count(ASKED_FOR[3]) == 1, "not retried"
        assert client.ask(ASKED_FOR, "judge")[3] is None and server.prompts.count(ASKED_FOR[3]) == 2, (
            "a rerun asks again"
        )
    assert client.usage()["judge"]["failed"] == 2 and client.usage()["judge"]["retries"] == 0


def test_a_prompt_fails_after_its_retries(connect):
    with ChatServer(lambda asked: error(500) if asked.prompt == ASKED_FOR[0] else answered(asked)) as server:
        client = connect(server, max_retries=3, max_failed=0.5)
        assert client.ask(ASKED_FOR, "judge") == [None, *ANSWERS[1:]]
        assert server.prompts.count(ASKED_FOR[0]) == 4
    assert client.usage()["judge"]["retries"] == 3


def test_too_many_failures_stop_and_keep_what_is_answered(connect):
    bad = set(ASKED_FOR[1:4])
    with ChatServer(lambda asked: error(400) if asked.prompt in bad else answered(asked)) as server:
        with pytest.raises(InputError) as caught:
            connect(server, max_concurrency=1, max_failed=0.25).ask(ASKED_FOR, "judge")
        assert server.prompts == ASKED_FOR[:4], "two of eight may fail, not three"
    message = str(caught.value)
    assert "3 of 8 prompts failed" in message and "demonstrations.teacher.max_failed = 0.25" in message
    assert "400: a scripted fault" in message and "1 of 8 prompts are kept" in message
    with ChatServer() as mended:
        assert connect(mended).ask(ASKED_FOR, "judge") == ANSWERS
        assert sorted(mended.prompts) == ASKED_FOR[1:], "a rerun asks only for the rest"


def test_a_failed_prompt_counts_as_often_as_it_is_asked_for(connect):
    prompts = [ASKED_FOR[0]] * 3 + ASKED_FOR[1:]  # 3 of 10
    script = lambda asked: error(400) if asked.prompt == ASKED_FOR[0] else answered(asked)  # noqa: E731
    with ChatServer(script) as server:
        assert connect(server, max_failed=0.3).ask(prompts, "judge") == [None] * 3 + ANSWERS[1:]
        with pytest.raises(InputError, match="3 of 10 prompts failed"):
            connect(server, max_failed=0.2).ask(prompts, "judge")


def test_of_a_few_prompts_one_may_fail_where_any_may(connect):
    with ChatServer([error(400)]) as server:
        client = connect(server, max_concurrency=1, max_failed=0.001)
        assert client.ask(ASKED_FOR, "judge") == [None, *ANSWERS[1:]]


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_answer_is_a_fault_that_is_paid_for_and_asked_again(store, connect, text):
    with ChatServer([sent(completion(text, reported()))]) as server:
        client = connect(server, max_concurrency=1, max_retries=1)
        assert client.ask(ASKED_FOR[:1], "recommend") == ANSWERS[:1]
    assert client.usage()["recommend"]["retries"] == 1
    assert store.spent().completion_tokens == 2 * COMPLETION_TOKENS


def test_calls_in_flight_are_recorded_when_it_stops(store, connect, monkeypatch):
    """One of three calls in flight fails; once that has stopped the ask, one is answered and one meets a fault."""
    stopped = threading.Event()
    stop = chat._Ask.stop

    def watched(*arguments):
        stop(*arguments)
        stopped.set()

    monkeypatch.setattr(chat._Ask, "stop", watched)

    def script(asked):
        if asked.prompt == ASKED_FOR[0]:
            return error(400)
        assert stopped.wait(PATIENCE)
        return answered(asked) if asked.prompt == ASKED_FOR[1] else error(500)

    with ChatServer(script, together=3) as server:
        client = connect(server, max_concurrency=3)
        with pytest.raises(InputError, match="1 of 8 prompts failed.*the answers to 1 of 8 prompts are kept"):
            client.ask(ASKED_FOR, "judge")
        assert sorted(server.prompts) == ASKED_FOR[:3]
    assert store.spent().calls == 1
    assert client.usage()["judge"]["failed"] == 1, "what may be retried has not failed"


def test_a_stop_cuts_retries_off(connect, monkeypatch):
    monkeypatch.setattr(chat, "BACK_OFF", tenacity.wait_fixed(600))
    backing_off = threading.Event()
    count = tenacity.AsyncRetrying.__call__

    async def watched(self, *arguments):
        before = self.before_sleep
        self.before_sleep = lambda state: (before(state), backing_off.set())[0]
        return await count(self, *arguments)

    monkeypatch.setattr(tenacity.AsyncRetrying, "__call__", watched)

    def script(asked):
        if asked.prompt == ASKED_FOR[0]:
            return error(500)
        assert backing_off.wait(PATIENCE)
        return error(401)

    with ChatServer(script) as server:
        client = connect(server, max_concurrency=2)
        with pytest.raises(InputError, match="OPENAI_API_KEY"):
            client.ask(ASKED_FOR[:2], "judge")
        assert len(server.asked) == 2
    assert client.usage()["judge"]["failed"] == 1, "what was cut off has not failed"


def test_faults_and_progress_are_told_now_and_then(connect, caplog, monkeypatch):
    caplog.set_level(logging.INFO, logger="convrec")
    prompts = [str(n) for n in range(300)]
    with ChatServer(lambda asked: error(429 if asked.number % 2 else 400)) as server:
        connect(server, max_failed=1.0, max_retries=1).ask(prompts, "judge")
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2, "the first, and the rest at the end"
    assert sum(int(word) for word in warnings[1].replace(",", "").split() if word.isdigit()) > 300
    assert "x 429" in warnings[1] and "x 400" in warnings[1]
    caplog.clear()
    with ChatServer() as server:
        connect(server).ask(prompts[:100], "judge")
        connect(server).ask(prompts + prompts[:100], "judge")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "judge: 100 of 100 answered (0 from the cache), 1,200 tokens, cost 0.17",
        "judge: 400 of 400 answered (200 from the cache), 2,400 tokens, cost 0.34",
    ]
    caplog.clear()
    monkeypatch.setattr(chat, "TELL_EVERY", 0.0)
    with ChatServer() as server:
        connect(server, max_concurrency=1, model="another").ask(prompts[:2], "judge")
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        "judge: 1 of 2 answered",
        "judge: 2 of 2 answered",
        "judge: 2 of 2 answered",
    ]


def test_retry_after_is_waited_for_and_back_off_comes_on_top(monkeypatch):
    monkeypatch.undo()
    state = tenacity.RetryCallState(tenacity.AsyncRetrying(), None, (), {})
    waits = {}
    for attempt, fault in ((1, Fault("429", "", retry_after=5.0)), (1, Fault("500", "")), (9, Fault("500", ""))):
        state.attempt_number = attempt
        state.set_result(fault)
        waits[attempt, fault.kind] = [chat._wait(state) for _ in range(200)]
    assert all(5 <= wait <= 6 for wait in waits[1, "429"])
    assert all(0 <= wait <= 1 for wait in waits[1, "500"]) and len(set(waits[1, "500"])) > 100
    assert 30 < max(waits[9, "500"]) <= 60


def test_a_store_that_fails_while_asking_stops_cleanly(store, connect, monkeypatch):
    def full(*_):
        raise InputError("calls.sqlite: the disk is full")

    monkeypatch.setattr(store, "_add", full)
    with ChatServer() as server:
        with pytest.raises(InputError, match="the disk is full.*0 of 8 prompts are kept"):
            connect(server, max_concurrency=1).ask(ASKED_FOR, "judge")
        assert len(server.asked) == 1
