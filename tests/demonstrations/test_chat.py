"""Chat calls against a real HTTP endpoint on this machine: what is sent, kept, counted and refused."""

import json
import logging
import os
import time
import traceback
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.demonstrations import chat
from convrec.demonstrations.calls import Spent
from convrec.demonstrations.chat import read_reply
from convrec.project.errors import InputError
from tests.demonstrations.chat_server import (
    ANSWERS,
    ASKED_FOR,
    BROKEN_JSON,
    COMPLETION_TOKENS,
    HANG,
    HTML,
    KEY,
    PATIENCE,
    PROMPT_TOKENS,
    ChatServer,
    Reply,
    answer_to,
    answered,
    completion,
    dripping,
    error,
    refused_with_echo,
    reported,
    sent,
    truncated,
)

# An unclosed client, connection, database or event loop fails the test.
pytestmark = pytest.mark.filterwarnings("error")

USED = PROMPT_TOKENS + COMPLETION_TOKENS
FIELDS = ["choices", "message", "content", "usage"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | st.text(), inner),
    max_leaves=20,
)


def test_what_is_sent(connect, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    with ChatServer() as server:
        connect(server, temperature=0.5).ask(["a"], "judge")
        assert connect(server, temperature=None).ask(["b\ud800"], "judge") == ["answer to b?"]
    message = {"model": "some-model", "max_completion_tokens": 50}
    assert server.asked[0].body == message | {"temperature": 0.5, "messages": [{"role": "user", "content": "a"}]}
    assert server.asked[1].body == message | {"messages": [{"role": "user", "content": "b?"}]}, "no half characters"
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.asked[0].path == "/v1/chat/completions"


def test_so_many_calls_are_in_flight_and_never_more(connect):
    prompts = [str(n) for n in range(60)]
    with ChatServer(together=6, latency=0.002) as server:  # the first 6 are held until 6 are there
        assert connect(server, max_concurrency=6).ask(prompts, "judge") == list(map(answer_to, prompts))
        assert server.most_at_once == 6


def test_recorded_answers_are_not_asked_for_again_and_usage_is_kept_by_purpose(store, connect):
    with ChatServer() as server:
        connect(server).ask(ASKED_FOR[:5], "recommend")
        second = connect(server)
        assert second.ask(ASKED_FOR + ASKED_FOR[:1], "judge") == ANSWERS + ANSWERS[:1]
        second.ask(ASKED_FOR[:2], "judge")
        second.ask(["another"], "recommend")
        assert sorted(server.prompts) == ["another", *ASKED_FOR]
    usage = second.usage()
    assert usage["recommend"]["calls"] == 1
    tokens = {"prompt_tokens": 3 * PROMPT_TOKENS, "completion_tokens": 3 * COMPLETION_TOKENS}
    assert usage["judge"] == {"calls": 3, "cached": 8, "failed": 0, "cut": 0, **tokens}
    assert store.spent() == Spent(9, 9 * PROMPT_TOKENS, 9 * COMPLETION_TOKENS)


@pytest.mark.parametrize(
    ("changes", "requests"),
    [
        ({"temperature": 0}, 0),  # an integer of YAML is the same number
        ({"max_concurrency": 1, "token_budget": 1000}, 0),
        ({"temperature": 0.1}, 2),
        ({"temperature": None}, 2),
        ({"model": "another-model"}, 2),
        ({"max_completion_tokens": 51}, 2),
    ],
)
def test_what_changes_the_answer_misses_the_cache(connect, changes, requests):
    with ChatServer() as first:
        connect(first).ask(ASKED_FOR[:2], "judge")
    with ChatServer() as another:  # another endpoint of the same model
        assert connect(another, **changes).ask(ASKED_FOR[:2], "judge") == ANSWERS[:2]
        assert len(another.asked) == requests


def test_answers_that_end_at_the_limit_are_kept_counted_and_reported(connect, caplog):
    caplog.set_level(logging.INFO, logger="convrec")
    cut = completion("1. Heat (1995)\n2. Incep", reported())
    cut["choices"][0]["finish_reason"] = "length"
    with ChatServer([sent(cut)]) as server:
        for _ in range(2):  # then from the cache
            client = connect(server, max_concurrency=1)
            client.ask(ASKED_FOR, "recommend")
            assert client.usage()["recommend"]["cut"] == 1
    assert "recommend: 8 of 8 answered (8 from the cache), 0 failed, 1 cut at max_completion_tokens" in caplog.text


@pytest.mark.parametrize("usage", [None, {}, ["?"], {"prompt_tokens": "7", "completion_tokens": 5}])
def test_tokens_are_estimated_where_the_endpoint_reports_none(usage):
    assert read_reply(json.dumps(completion("x" * 30, usage)), "y" * 60) == ("x" * 30, "stop", 20, 10)


@given(body=st.text() | st.just("[" * 100_000) | JSON.map(json.dumps))
def test_any_body_is_read(body):
    answer = read_reply(body, "")
    assert answer is None or answer.text == chat.sendable(json.loads(body)["choices"][0]["message"]["content"])


def test_a_budget_stops_before_the_next_call_and_raised_goes_on(connect):
    with ChatServer() as server:
        limited = connect(server, token_budget=3 * USED, max_concurrency=1)
        with pytest.raises(InputError) as caught:
            limited.ask(ASKED_FOR, "judge")
        assert len(server.asked) == 3
        assert f"demonstrations.teacher.token_budget = {3 * USED} is reached" in str(caught.value)
        assert f"{3 * USED} tokens" in str(caught.value) and "3 of 8 prompts are kept" in str(caught.value)
        with pytest.raises(InputError, match="token_budget"):
            connect(server, token_budget=1).ask(ASKED_FOR, "judge")
        assert limited.ask(ASKED_FOR[:3], "judge") == ANSWERS[:3], "cached is free"
        assert connect(server).ask(ASKED_FOR, "judge") == ANSWERS
        assert sorted(server.prompts) == ASKED_FOR, "each asked once in all"


def test_a_budget_is_exceeded_by_the_calls_in_flight_at_most(connect):
    with ChatServer(together=4) as server:
        with pytest.raises(InputError, match="token_budget.*4 of 8 prompts are kept"):
            connect(server, token_budget=1, max_concurrency=4).ask(ASKED_FOR, "judge")
        assert len(server.asked) == 4


@pytest.mark.parametrize("fault", [error(429), error(408), error(500), HANG, dripping, truncated])
def test_passing_faults_are_retried(connect, fault):
    with ChatServer([answered, fault]) as server:
        client = connect(server, max_concurrency=1, seconds=0.5 if fault in (HANG, dripping) else 10.0)
        start = time.monotonic()
        assert client.ask(ASKED_FOR[:3], "judge") == ANSWERS[:3]
        assert server.prompts == [ASKED_FOR[0], ASKED_FOR[1], ASKED_FOR[1], ASKED_FOR[2]], "only what failed"
        assert time.monotonic() - start < PATIENCE / 2, "a call that hangs is given up"
    assert (client.usage()["judge"]["calls"], client.usage()["judge"]["failed"]) == (3, 0)


@pytest.mark.parametrize(
    "fault",
    [error(400), BROKEN_JSON, HTML, sent(completion(" \n")), sent(completion("", choices=[])), Reply(status=204)],
)
def test_a_refused_prompt_or_an_unusable_answer_fails_alone_and_is_asked_again_in_a_rerun(connect, caplog, fault):
    caplog.set_level(logging.INFO, logger="convrec")
    with ChatServer([answered, fault]) as server:
        client = connect(server, max_concurrency=1, max_failed=1 / 8)
        assert client.ask(ASKED_FOR, "judge") == [ANSWERS[0], None, *ANSWERS[2:]]
        assert len(server.asked) == 8, "not retried"
        assert client.usage()["judge"]["failed"] == 1
        assert connect(server).ask(ASKED_FOR, "judge") == ANSWERS
    assert "judge: failed: " in caplog.text
    told = "judge: 8 of 8 answered (7 from the cache), 0 failed, 0 cut at max_completion_tokens, 12 tokens"
    assert told in caplog.text


@pytest.mark.parametrize("status", [302, 307, 308])
def test_a_redirect_takes_no_prompt_elsewhere(connect, status):
    with ChatServer() as other:
        moved = Reply(status=status, headers={"Location": f"{other.url}/chat/completions"})
        message = f"base_url = .* refuses .*it redirects to {other.url}"
        with ChatServer([moved]) as server, pytest.raises(InputError, match=message):
            connect(server, max_failed=1.0, max_concurrency=1).ask(ASKED_FOR, "judge")
        assert len(server.asked) == 1 and not other.asked


def test_an_unreachable_server_fails_the_prompts_and_is_named(connect):
    with ChatServer() as server:
        url = server.url
    client = connect(SimpleNamespace(url=url), max_failed=1.0, max_retries=0)
    assert client.ask(ASKED_FOR[:2], "judge") == [None, None]
    with pytest.raises(InputError, match="max_failed = 0.0 allows; the last fault was Connection error. .All connect"):
        connect(SimpleNamespace(url=url), max_retries=0).ask(ASKED_FOR, "judge")


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refused_key_and_an_unknown_model_stop_at_once(connect, status):
    with ChatServer([answered, error(status)]) as server:
        with pytest.raises(InputError, match=f"{status} - .*a scripted fault.*1 of 8 prompts are kept") as caught:
            connect(server, max_concurrency=1, max_failed=1.0).ask(ASKED_FOR, "judge")
        for named in (f"base_url = {server.url!r}", "model = 'some-model'", "OPENAI_API_KEY"):
            assert named in str(caught.value)
        assert len(server.asked) == 2


def test_too_many_failures_stop_and_keep_what_is_answered(connect):
    bad = set(ASKED_FOR[1:4])
    with ChatServer(lambda asked: error(400) if asked.prompt in bad else answered(asked)) as server:
        with pytest.raises(InputError) as caught:
            connect(server, max_concurrency=1, max_failed=0.25).ask(ASKED_FOR, "judge")
        assert server.prompts == ASKED_FOR[:4], "two of eight may fail, not three"
    message = str(caught.value)
    assert "3 prompts failed" in message and "demonstrations.teacher.max_failed = 0.25" in message
    assert "a scripted fault" in message and "1 of 8 prompts are kept" in message
    with ChatServer() as mended:
        assert connect(mended).ask(ASKED_FOR, "judge") == ANSWERS
        assert sorted(mended.prompts) == ASKED_FOR[1:], "a rerun asks only for the rest"


def test_the_key_is_redacted_wherever_the_endpoint_repeats_it(connect, caplog):
    caplog.set_level(logging.DEBUG)
    padding = "x" * (chat.DETAIL_LENGTH - len(KEY) // 2)
    echo = [error(400, f"x{KEY}y"), Reply(KEY.encode(), content_type="text/html"), error(400, padding + KEY)]
    with ChatServer([*echo, refused_with_echo]) as server:
        with pytest.raises(InputError, match=r"no such key: Bearer \*\*\*") as caught:
            connect(server, max_concurrency=1, max_failed=1.0).ask(ASKED_FOR, "judge")
        assert len(server.asked) == 4
    assert KEY[:5] not in "".join(traceback.format_exception(caught.value)) + caplog.text


def test_a_missing_key_is_reported_before_any_work(connect, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", " ")
    with pytest.raises(InputError, match="OPENAI_API_KEY is not set.*demonstrations.teacher.base_url"):
        connect(SimpleNamespace(url=None))
    with ChatServer([answered, refused_with_echo]) as server:
        client = connect(server)
        assert client.ask(ASKED_FOR[:1], "judge") == ANSWERS[:1], "an endpoint of one's own needs none"
        with pytest.raises(InputError, match="OPENAI_API_KEY is not set"):
            client.ask(ASKED_FOR[1:2], "judge")


@pytest.mark.parametrize("key", ["sk-a\nb", "sk-ключ", "sk-\x00"])
def test_a_key_that_no_header_can_hold_is_reported(connect, monkeypatch, key):
    monkeypatch.setattr(os, "environ", os.environ | {"OPENAI_API_KEY": key})
    with pytest.raises(InputError, match="OPENAI_API_KEY holds characters") as caught:
        connect(SimpleNamespace(url="http://127.0.0.1:1"))
    assert key not in str(caught.value)
