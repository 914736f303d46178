"""Chat calls against a real HTTP endpoint on this machine that makes every fault on cue."""

import hashlib
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import tenacity

from convrec.demonstrations import chat
from convrec.demonstrations.calls import CallStore, Spent
from convrec.demonstrations.chat import Budget, ChatClient
from convrec.demonstrations.replies import Fault
from convrec.errors import InputError
from tests.demonstrations.chat_server import (
    BROKEN_JSON,
    COMPLETION_TOKENS,
    HANG,
    HTML,
    NO_CHOICES,
    NULL_CONTENT,
    PATIENCE,
    PROMPT_TOKENS,
    ChatServer,
    Reply,
    answer_to,
    answered,
    completion,
    error,
    refused_with_echo,
    reported,
    sent,
    truncated,
    truncated_stream,
)

# An unclosed client, connection, database or event loop fails the test.
pytestmark = pytest.mark.filterwarnings("error")

KEY = "sk-test-0123456789abcdef"
UNLIMITED = Budget(max_tokens=None, max_cost=None, prompt_price=100.0, completion_price=200.0)
COST = (PROMPT_TOKENS * 100 + COMPLETION_TOKENS * 200) / 1e6  # of one call
PROMPTS = [f"prompt {n}" for n in range(8)]
ANSWERS = [answer_to(prompt) for prompt in PROMPTS]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setattr(chat, "BACK_OFF", tenacity.wait_random(0, 0.01))


@pytest.fixture
def store(tmp_path):
    opened = CallStore(tmp_path / "calls" / "chat.sqlite")
    yield opened
    opened.close()


def make_client(store, server, **changes):
    options = {
        "model": "some-model",
        "base_url": server.url,
        "temperature": 0.0,
        "max_completion_tokens": 50,
        "max_concurrency": 4,
        "timeout_seconds": 10.0,
        "max_retries": 2,
        "max_failed": 0.0,
        "budget": UNLIMITED,
    }
    return ChatClient(store, **options | changes)


def chain_text(error):
    """Return all that an exception shows to a reader."""
    return "\n".join([str(error), repr(error), *traceback.format_exception(error)])


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
def test_each_passing_fault_is_recovered_from(store, caplog, fault):
    with ChatServer([answered, fault]) as server:
        client = make_client(store, server, timeout_seconds=0.5 if fault is HANG else 10.0, max_concurrency=1)
        start = time.monotonic()
        assert client.ask(PROMPTS[:3], "judge") == ANSWERS[:3]
        assert server.prompts == [PROMPTS[0], PROMPTS[1], PROMPTS[1], PROMPTS[2]], "only what failed is asked again"
        assert time.monotonic() - start < PATIENCE / 2, "a call that hangs is given up"
    usage = client.usage()["judge"]
    assert (usage["calls"], usage["retries"], usage["failed"]) == (3, 1, 0)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and "judge: faults: 1 x " in warnings[0].message


def test_a_lost_connection_is_recovered_from(store):
    with ChatServer() as server:
        url = server.url
    client = make_client(store, SimpleNamespace(url=url), max_failed=1.0)
    assert client.ask(PROMPTS[:2], "judge") == [None, None]
    assert client.usage()["judge"]["retries"] == 4, "two each"


def test_what_is_sent(store):
    with ChatServer() as server:
        make_client(store, server, temperature=0.5).ask(["a"], "judge")
        make_client(store, server, temperature=None).ask(["b\ud800"], "judge")
    message = {"model": "some-model", "max_completion_tokens": 50}
    assert server.asked[0].body == message | {"temperature": 0.5, "messages": [{"role": "user", "content": "a"}]}
    assert server.asked[1].body == message | {"messages": [{"role": "user", "content": "b?"}]}, "no half characters"
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.asked[0].path == "/v1/chat/completions"


def test_answers_are_in_the_order_of_the_prompts_and_each_is_asked_for_once(store):
    prompts = PROMPTS * 3 + PROMPTS[::-1]
    with ChatServer() as server:
        client = make_client(store, server)
        assert client.ask(prompts, "judge") == [answer_to(prompt) for prompt in prompts]
        assert client.ask([], "judge") == []
    assert sorted(server.prompts) == PROMPTS


def test_so_many_calls_are_in_flight_and_never_more(store):
    prompts = [str(n) for n in range(60)]
    with ChatServer(together=6, latency=0.002) as server:  # the first 6 are held until 6 are there
        assert make_client(store, server, max_concurrency=6).ask(prompts, "judge") == list(map(answer_to, prompts))
        assert server.most_at_once == 6


def test_an_answer_is_on_disk_before_the_next_call(store):
    kept = []

    def look(asked):
        other = CallStore(store.path)
        kept.append(other.spent().calls)
        other.close()
        return answered(asked)

    with ChatServer(look) as server:
        make_client(store, server, max_concurrency=1).ask(PROMPTS[:4], "judge")
    assert kept == [0, 1, 2, 3]


def test_recorded_answers_are_not_asked_for_again(store):
    with ChatServer() as server:
        make_client(store, server).ask(PROMPTS[:5], "recommend")
        second = make_client(store, server)
        assert second.ask(PROMPTS + PROMPTS[:1], "judge") == ANSWERS + ANSWERS[:1]
        assert sorted(server.prompts) == PROMPTS
    assert second.usage() == {
        "judge": {
            "calls": 3,
            "cached": 6,
            "failed": 0,
            "retries": 0,
            "cut": 0,
            "prompt_tokens": 3 * PROMPT_TOKENS,
            "completion_tokens": 3 * COMPLETION_TOKENS,
            "cost": pytest.approx(3 * COST),
        }
    }
    spent = store.spent()
    assert (spent.calls, spent.prompt_tokens, spent.completion_tokens) == (8, 8 * PROMPT_TOKENS, 8 * COMPLETION_TOKENS)
    assert spent.cost == pytest.approx(8 * COST)


@pytest.mark.parametrize(
    ("changes", "requests"),
    [
        ({}, 0),
        ({"temperature": 0}, 0),  # an integer of YAML is the same number
        ({"max_concurrency": 1, "timeout_seconds": 3.0, "max_retries": 0}, 0),
        ({"temperature": 0.1}, 2),
        ({"temperature": None}, 2),
        ({"model": "another-model"}, 2),
        ({"max_completion_tokens": 51}, 2),
    ],
)
def test_what_changes_the_answer_misses_the_cache(store, changes, requests):
    with ChatServer() as first:
        make_client(store, first).ask(PROMPTS[:2], "judge")
    with ChatServer() as another:  # another endpoint of the same model
        assert make_client(store, another, **changes).ask(PROMPTS[:2], "judge") == ANSWERS[:2]
        assert len(another.asked) == requests


def test_usage_is_kept_by_purpose_and_asks_of_a_purpose_add_up(store):
    with ChatServer() as server:
        client = make_client(store, server)
        client.ask(PROMPTS[:2], "recommend")
        client.ask(PROMPTS[2:4], "judge")
        client.ask(PROMPTS[2:7], "judge")
    usage = client.usage()
    assert usage["recommend"]["calls"] == 2 and usage["recommend"]["cached"] == 0
    assert usage["judge"]["calls"] == 5 and usage["judge"]["cached"] == 2
    assert usage["judge"]["prompt_tokens"] == 5 * PROMPT_TOKENS


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": -1, "completion_tokens": 2}, {"prompt_tokens": 10**30}])
def test_an_answer_without_usage_is_counted_by_its_bytes(store, usage):
    prompt = "ééé prompt"  # 13 bytes
    with ChatServer([sent(completion("12345678", usage))]) as server:
        make_client(store, server).ask([prompt], "judge")
    assert store.spent() == Spent(1, 5, 3, pytest.approx((5 * 100 + 3 * 200) / 1e6))


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_stops_at_once(store, status):
    with ChatServer(lambda asked: error(status)) as server:
        with pytest.raises(InputError, match=f"OPENAI_API_KEY.*{status}: a scripted fault") as caught:
            make_client(store, server, max_concurrency=1, max_failed=1.0).ask(PROMPTS, "judge")
        assert f"demonstrations.teacher.base_url = {server.url!r}" in str(caught.value)
        assert len(server.asked) == 1


def test_an_unknown_model_stops_at_once(store):
    with ChatServer([answered, error(404)]) as server:
        with pytest.raises(InputError, match="demonstrations.teacher.model = 'some-model'") as caught:
            make_client(store, server, max_concurrency=1, max_failed=1.0).ask(PROMPTS, "judge")
        assert f"demonstrations.teacher.base_url = {server.url!r}" in str(caught.value)
        assert "1 of 8 prompts are kept" in str(caught.value)
        assert len(server.asked) == 2


@pytest.mark.parametrize("status", [400, 422, 413])
def test_a_prompt_that_the_endpoint_will_not_have_fails_alone(store, status):
    with ChatServer(lambda asked: error(status) if asked.prompt == PROMPTS[3] else answered(asked)) as server:
        client = make_client(store, server, max_failed=1 / 8)
        assert client.ask(PROMPTS, "judge") == ANSWERS[:3] + [None] + ANSWERS[4:]
        assert server.prompts.count(PROMPTS[3]) == 1, "not retried"
        assert client.ask(PROMPTS, "judge")[3] is None and server.prompts.count(PROMPTS[3]) == 2, "a rerun asks again"
    assert client.usage()["judge"]["failed"] == 2 and client.usage()["judge"]["retries"] == 0


def test_a_prompt_fails_after_its_retries(store):
    with ChatServer(lambda asked: error(500) if asked.prompt == PROMPTS[0] else answered(asked)) as server:
        client = make_client(store, server, max_retries=3, max_failed=0.5)
        assert client.ask(PROMPTS, "judge") == [None, *ANSWERS[1:]]
        assert server.prompts.count(PROMPTS[0]) == 4
    assert client.usage()["judge"]["retries"] == 3


def test_too_many_failures_stop_and_keep_what_is_answered(store):
    bad = set(PROMPTS[1:4])
    with ChatServer(lambda asked: error(400) if asked.prompt in bad else answered(asked)) as server:
        with pytest.raises(InputError) as caught:
            make_client(store, server, max_concurrency=1, max_failed=0.25).ask(PROMPTS, "judge")
        assert server.prompts == PROMPTS[:4], "two of eight may fail, not three"
    message = str(caught.value)
    assert "3 of 8 prompts failed" in message and "demonstrations.teacher.max_failed = 0.25" in message
    assert "400: a scripted fault" in message and "1 of 8 prompts are kept" in message
    with ChatServer() as mended:
        assert make_client(store, mended).ask(PROMPTS, "judge") == ANSWERS
        assert sorted(mended.prompts) == PROMPTS[1:], "a rerun asks only for the rest"


def test_a_failed_prompt_counts_as_often_as_it_is_asked_for(store):
    prompts = [PROMPTS[0]] * 3 + PROMPTS[1:]  # 3 of 10
    script = lambda asked: error(400) if asked.prompt == PROMPTS[0] else answered(asked)  # noqa: E731
    with ChatServer(script) as server:
        assert make_client(store, server, max_failed=0.3).ask(prompts, "judge") == [None] * 3 + ANSWERS[1:]
        with pytest.raises(InputError, match="3 of 10 prompts failed"):
            make_client(store, server, max_failed=0.2).ask(prompts, "judge")


def test_of_a_few_prompts_one_may_fail_where_any_may(store):
    with ChatServer([error(400)]) as server:
        client = make_client(store, server, max_concurrency=1, max_failed=0.001)
        assert client.ask(PROMPTS, "judge") == [None, *ANSWERS[1:]]


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_answer_is_a_fault_that_is_paid_for_and_asked_again(store, text):
    with ChatServer([sent(completion(text, reported()))]) as server:
        client = make_client(store, server, max_concurrency=1, max_retries=1)
        assert client.ask(PROMPTS[:1], "recommend") == ANSWERS[:1]
    assert client.usage()["recommend"]["retries"] == 1
    assert store.spent().completion_tokens == 2 * COMPLETION_TOKENS


def test_answers_that_end_at_the_limit_are_kept_counted_and_told(store, caplog):
    cut = completion("1. Heat (1995)\n2. Incep", reported())
    cut["choices"][0]["finish_reason"] = "length"
    with ChatServer([sent(cut)]) as server:
        for _ in range(2):  # then from the cache
            client = make_client(store, server, max_concurrency=1)
            client.ask(PROMPTS, "recommend")
            assert client.usage()["recommend"]["cut"] == 1
    assert "recommend: 1 of 8 answers end at demonstrations.teacher.max_completion_tokens" in caplog.text


def test_calls_in_flight_are_recorded_when_it_stops(store, monkeypatch):
    """One of three calls in flight fails; once that has stopped the ask, one is answered and one meets a fault."""
    stopped = threading.Event()
    stop = chat._Ask.stop

    def watched(*arguments):
        stop(*arguments)
        stopped.set()

    monkeypatch.setattr(chat._Ask, "stop", watched)

    def script(asked):
        if asked.prompt == PROMPTS[0]:
            return error(400)
        assert stopped.wait(PATIENCE)
        return answered(asked) if asked.prompt == PROMPTS[1] else error(500)

    with ChatServer(script, together=3) as server:
        client = make_client(store, server, max_concurrency=3)
        with pytest.raises(InputError, match="1 of 8 prompts failed.*the answers to 1 of 8 prompts are kept"):
            client.ask(PROMPTS, "judge")
        assert sorted(server.prompts) == PROMPTS[:3]
    assert store.spent().calls == 1
    assert client.usage()["judge"]["failed"] == 1, "what may be retried has not failed"


def test_a_stop_cuts_retries_off(store, monkeypatch):
    monkeypatch.setattr(chat, "BACK_OFF", tenacity.wait_fixed(600))
    backing_off = threading.Event()
    count = tenacity.AsyncRetrying.__call__

    async def watched(self, *arguments):
        before = self.before_sleep
        self.before_sleep = lambda state: (before(state), backing_off.set())[0]
        return await count(self, *arguments)

    monkeypatch.setattr(tenacity.AsyncRetrying, "__call__", watched)

    def script(asked):
        if asked.prompt == PROMPTS[0]:
            return error(500)
        assert backing_off.wait(PATIENCE)
        return error(401)

    with ChatServer(script) as server:
        client = make_client(store, server, max_concurrency=2)
        with pytest.raises(InputError, match="OPENAI_API_KEY"):
            client.ask(PROMPTS[:2], "judge")
        assert len(server.asked) == 2
    assert client.usage()["judge"]["failed"] == 1, "what was cut off has not failed"


def test_faults_and_progress_are_told_now_and_then(store, caplog, monkeypatch):
    caplog.set_level(logging.INFO, logger="convrec")
    prompts = [str(n) for n in range(300)]
    with ChatServer(lambda asked: error(429 if asked.number % 2 else 400)) as server:
        make_client(store, server, max_failed=1.0, max_retries=1).ask(prompts, "judge")
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2, "the first, and the rest at the end"
    assert sum(int(word) for word in warnings[1].replace(",", "").split() if word.isdigit()) > 300
    assert "x 429" in warnings[1] and "x 400" in warnings[1]
    caplog.clear()
    with ChatServer() as server:
        make_client(store, server).ask(prompts[:100], "judge")
        make_client(store, server).ask(prompts + prompts[:100], "judge")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "judge: 100 of 100 answered (0 from the cache), 1,200 tokens, cost 0.17",
        "judge: 400 of 400 answered (200 from the cache), 2,400 tokens, cost 0.34",
    ]
    caplog.clear()
    monkeypatch.setattr(chat, "TELL_EVERY", 0.0)
    with ChatServer() as server:
        make_client(store, server, max_concurrency=1, model="another").ask(prompts[:2], "judge")
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        "judge: 1 of 2 answered",
        "judge: 2 of 2 answered",
        "judge: 2 of 2 answered",
    ]


def test_the_key_is_redacted_wherever_the_endpoint_repeats_it(store, caplog):
    caplog.set_level(logging.DEBUG)
    echo = [error(500, message=f"x{KEY}y"), Reply(KEY.encode(), content_type="text/html"), sent({KEY: KEY})]
    with ChatServer([*echo, refused_with_echo]) as server:
        with pytest.raises(InputError, match=r"no such key: Bearer \[key\]") as caught:
            make_client(store, server, max_concurrency=1, max_retries=9).ask(PROMPTS, "judge")
        assert len(server.asked) == 4
    assert KEY not in chain_text(caught.value) and caught.value.__context__ is None
    assert "[key]" in caplog.text and KEY not in caplog.text
    reply = sent(completion(f"your key is {KEY}", reported()))
    with ChatServer([reply]) as server:
        assert make_client(store, server).ask(PROMPTS[:1], "judge") == ["your key is [key]"]
    files = [path.read_bytes() for path in store.path.parent.iterdir()]
    assert any(b"[key]" in content for content in files) and not any(KEY.encode() in content for content in files)


def test_half_a_key_is_not_told(store, caplog):
    padding = "x" * (chat.DETAIL_LENGTH - len(KEY) // 2)
    with ChatServer([error(401, message=padding + KEY)]) as server, pytest.raises(InputError) as caught:
        make_client(store, server).ask(PROMPTS[:1], "judge")
    assert KEY[:4] not in chain_text(caught.value) + caplog.text


def test_a_word_as_key_is_left_in_answers(store, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "answer")
    with ChatServer() as server:
        assert make_client(store, server).ask(PROMPTS, "judge") == ANSWERS


def test_a_missing_key_is_told_before_any_work(store, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", " ")
    with pytest.raises(InputError, match="OPENAI_API_KEY is not set.*demonstrations.teacher.base_url"):
        make_client(store, SimpleNamespace(url=None))
    with ChatServer([answered, refused_with_echo]) as server:
        client = make_client(store, server)
        assert client.ask(PROMPTS[:1], "judge") == ANSWERS[:1], "an endpoint of one's own needs none"
        with pytest.raises(InputError, match="OPENAI_API_KEY is not set"):
            client.ask(PROMPTS[1:2], "judge")


@pytest.mark.parametrize("key", ["sk-a\nb", "sk-ключ", "sk-\x00"])
def test_a_key_that_no_header_can_hold_is_told(store, monkeypatch, key):
    monkeypatch.setattr(os, "environ", os.environ | {"OPENAI_API_KEY": key})
    with pytest.raises(InputError, match="OPENAI_API_KEY holds characters") as caught:
        make_client(store, SimpleNamespace(url="http://127.0.0.1:1"))
    assert key not in chain_text(caught.value)


def test_blanks_around_the_key_are_left_out(store, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    with ChatServer() as server:
        make_client(store, server).ask(PROMPTS[:1], "judge")
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


NEEDED = 3 + 50  # tokens reserved for a prompt of 8 bytes
NEEDED_COST = (3 * 100 + 50 * 200) / 1e6
USED = PROMPT_TOKENS + COMPLETION_TOKENS


def test_a_budget_of_tokens_stops_cleanly_and_raised_goes_on(store):
    budget = Budget(NEEDED + 2 * USED, None, 100.0, 200.0)  # after two calls a third fits, after three no fourth
    with ChatServer() as server:
        with pytest.raises(InputError) as caught:
            make_client(store, server, budget=budget, max_concurrency=1).ask(PROMPTS, "judge")
        assert len(server.asked) == 3
        assert f"demonstrations.teacher.budget.max_tokens = {NEEDED + 2 * USED}" in str(caught.value)
        assert f"{3 * USED} tokens" in str(caught.value) and "3 of 8 prompts are kept" in str(caught.value)
        with pytest.raises(InputError, match="max_tokens"):
            make_client(store, server, budget=budget).ask(PROMPTS, "judge")
        assert len(server.asked) == 3, "the limit is of the file, not of a run"
        assert make_client(store, server, budget=budget).ask(PROMPTS[:3], "judge") == ANSWERS[:3], "cached is free"
        raised = Budget(NEEDED + 7 * USED, None, 100.0, 200.0)
        assert make_client(store, server, budget=raised).ask(PROMPTS, "judge") == ANSWERS
        assert sorted(server.prompts) == PROMPTS, "each asked once in all"


def test_a_budget_of_money_stops_cleanly_and_raised_goes_on(store):
    limit = NEEDED_COST + 2.5 * COST
    with ChatServer() as server:
        with pytest.raises(InputError, match=r"demonstrations\.teacher\.budget\.max_cost = 0\.0"):
            client = make_client(store, server, budget=Budget(None, limit, 100.0, 200.0), max_concurrency=1)
            client.ask(PROMPTS, "judge")
        assert len(server.asked) == 3 and client.usage()["judge"]["cost"] == pytest.approx(3 * COST)
        raised = Budget(None, 1.0, 100.0, 200.0)
        assert make_client(store, server, budget=raised).ask(PROMPTS, "judge") == ANSWERS
        assert len(server.asked) == 8


def test_prices_of_zero_cost_nothing(store):
    with ChatServer() as server:
        client = make_client(store, server, budget=Budget(None, 0.0, 0.0, 0.0))
        assert client.ask(PROMPTS, "judge") == ANSWERS


@pytest.mark.parametrize(("room", "rest"), [(1, 0), (2, 1), (11, NEEDED - 1)])
def test_calls_in_flight_never_exceed_the_budget(store, room, rest):
    """Every call takes all that was reserved for it: one too many would break the limit."""
    limit = room * NEEDED + rest
    script = lambda asked: sent(completion(answer_to(asked.prompt), reported(3, 50)))  # noqa: E731
    prompts = [f"prompt{n:02d}" for n in range(40)]
    with ChatServer(script, latency=0.005) as server:
        with pytest.raises(InputError, match="max_tokens"):
            make_client(store, server, budget=Budget(limit, None, 0.0, 0.0), max_concurrency=16).ask(prompts, "judge")
        assert len(server.asked) == room and server.most_at_once <= room
    spent = store.spent()
    assert spent.prompt_tokens + spent.completion_tokens == room * NEEDED <= limit


def test_a_call_waits_for_those_in_flight_to_give_their_reservation_back(store):
    """There is room to reserve two, and true usage for all eight."""
    with ChatServer(together=2) as server:
        budget = Budget(2 * NEEDED + 6 * USED, None, 0.0, 0.0)
        assert make_client(store, server, budget=budget, max_concurrency=8).ask(PROMPTS, "judge") == ANSWERS
        assert server.most_at_once >= 2


def test_completions_without_text_are_paid_for(store):
    """A model that thinks until its tokens are spent answers nothing, and every retry costs."""
    with ChatServer(lambda asked: NULL_CONTENT) as server:
        budget = Budget(NEEDED + 2 * USED, None, 100.0, 200.0)
        with pytest.raises(InputError, match="max_tokens"):
            make_client(store, server, budget=budget, max_retries=100).ask(PROMPTS[:1], "judge")
        assert len(server.asked) == 3
    assert store.spent() == Spent(0, 3 * PROMPT_TOKENS, 3 * COMPLETION_TOKENS, pytest.approx(3 * COST))


def test_half_a_surrogate_pair_in_an_answer_is_replaced(store):
    body = json.dumps(completion("a\ud83db", reported())).encode()
    with ChatServer([Reply(body)]) as server:
        assert make_client(store, server).ask(PROMPTS[:1], "judge") == ["a?b"]


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


PROGRAM = """
import sys
from pathlib import Path
from convrec.demonstrations.calls import CallStore
from convrec.demonstrations.chat import Budget, ChatClient

url, path, first, last, concurrency = sys.argv[1:]
store = CallStore(Path(path))
client = ChatClient(
    store, model="m", base_url=url, temperature=0.0, max_completion_tokens=50, max_concurrency=int(concurrency),
    timeout_seconds=20.0, max_retries=3, max_failed=0.0, budget=Budget(None, None, 0.0, 0.0),
)
prompts = [f"prompt {n}" for n in range(int(first), int(last))]
answers = client.ask(prompts, "judge")
store.close()
assert answers == [f"answer to {prompt}" for prompt in prompts], answers
"""


@contextmanager
def asking(server, path, first, last, concurrency):
    """A process of its own that asks for prompts `first` to `last`."""
    arguments = [server.url, str(path), str(first), str(last), str(concurrency)]
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", PROGRAM, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _check(path):
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = database.execute("SELECT key, request, answer FROM calls").fetchall()
    database.close()
    answers = {}
    for key, request, answer in rows:
        assert key == hashlib.sha256(request.encode()).hexdigest()
        prompt = json.loads(request)["messages"][0]["content"]
        assert answer == answer_to(prompt)
        answers[prompt] = answer
    return answers


def test_a_kill_loses_at_most_the_calls_in_flight(tmp_path):
    path, size, concurrency = tmp_path / "calls.sqlite", 200, 8
    with ChatServer(latency=0.01) as server:
        for kill in (1, 2):
            asked_before = len(server.asked)
            with asking(server, path, 0, size, concurrency) as process:
                server.wait_for(asked_before + 60)
                process.send_signal(signal.SIGKILL)
                assert process.wait(PATIENCE) == -signal.SIGKILL
            kept, known = _check(path), len(server.asked)
            assert known - kill * concurrency <= len(kept) < size, "killed in the middle, with its answers kept"
        with asking(server, path, 0, size, concurrency) as process:
            _, stderr = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, stderr
        assert not set(kept) & set(server.prompts[known:]), "no recorded answer is asked for again"
        assert len(server.asked) <= size + 2 * concurrency
    assert len(_check(path)) == size


def test_an_interrupt_leaves_at_once_and_keeps_what_is_answered(tmp_path):
    path = tmp_path / "calls.sqlite"
    with ChatServer(lambda asked: answered(asked) if asked.number < 20 else HANG) as server:
        with asking(server, path, 0, 50, 4) as process:
            server.wait_for(24)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=PATIENCE / 2)
        assert process.returncode != 0 and "KeyboardInterrupt" in stderr
        assert "Warning" not in stderr and "never retrieved" not in stderr, stderr
        assert len(server.asked) == 24
    assert len(_check(path)) == 20


def test_two_processes_share_a_file(tmp_path):
    path = tmp_path / "calls.sqlite"
    with (
        ChatServer(latency=0.002, together=8) as server,  # held until both are at work
        asking(server, path, 0, 100, 4) as one,
        asking(server, path, 50, 150, 4) as other,
    ):
        for process in (one, other):
            _, stderr = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, stderr
        times = Counter(server.prompts)
    assert len(_check(path)) == 150 and max(times.values()) <= 2
    store = CallStore(path)
    assert store.spent().prompt_tokens == sum(times.values()) * PROMPT_TOKENS, "what both paid for is counted"
    store.close()


def test_a_store_that_fails_while_asking_stops_cleanly(store, monkeypatch):
    def full(*_):
        raise InputError("calls.sqlite: the disk is full")

    monkeypatch.setattr(store, "_add", full)
    with ChatServer() as server:
        with pytest.raises(InputError, match="the disk is full.*0 of 8 prompts are kept"):
            make_client(store, server, max_concurrency=1).ask(PROMPTS, "judge")
        assert len(server.asked) == 1
