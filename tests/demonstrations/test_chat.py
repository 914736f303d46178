"""Chat calls against a real HTTP endpoint on this machine: what is sent, kept and counted; the key is never shown."""

import json
import logging
import os
import traceback
from types import SimpleNamespace

import pytest

from convrec.demonstrations import chat
from convrec.demonstrations.calls import CallStore, Spent
from convrec.errors import InputError
from tests.demonstrations.chat_server import (
    ANSWERS,
    ASKED_FOR,
    COMPLETION_TOKENS,
    COST,
    KEY,
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
)

# An unclosed client, connection, database or event loop fails the test.
pytestmark = pytest.mark.filterwarnings("error")


def test_what_is_sent(connect):
    with ChatServer() as server:
        connect(server, temperature=0.5).ask(["a"], "judge")
        connect(server, temperature=None).ask(["b\ud800"], "judge")
    message = {"model": "some-model", "max_completion_tokens": 50}
    assert server.asked[0].body == message | {"temperature": 0.5, "messages": [{"role": "user", "content": "a"}]}
    assert server.asked[1].body == message | {"messages": [{"role": "user", "content": "b?"}]}, "no half characters"
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.asked[0].path == "/v1/chat/completions"


def test_answers_are_in_the_order_of_the_prompts_and_each_is_asked_for_once(connect):
    prompts = ASKED_FOR * 3 + ASKED_FOR[::-1]
    with ChatServer() as server:
        client = connect(server)
        assert client.ask(prompts, "judge") == [answer_to(prompt) for prompt in prompts]
        assert client.ask([], "judge") == []
    assert sorted(server.prompts) == ASKED_FOR


def test_so_many_calls_are_in_flight_and_never_more(connect):
    prompts = [str(n) for n in range(60)]
    with ChatServer(together=6, latency=0.002) as server:  # the first 6 are held until 6 are there
        assert connect(server, max_concurrency=6).ask(prompts, "judge") == list(map(answer_to, prompts))
        assert server.most_at_once == 6


def test_an_answer_is_on_disk_before_the_next_call(store, connect):
    kept = []

    def look(asked):
        other = CallStore(store.path)
        kept.append(other.spent().calls)
        other.close()
        return answered(asked)

    with ChatServer(look) as server:
        connect(server, max_concurrency=1).ask(ASKED_FOR[:4], "judge")
    assert kept == [0, 1, 2, 3]


def test_recorded_answers_are_not_asked_for_again(store, connect):
    with ChatServer() as server:
        connect(server).ask(ASKED_FOR[:5], "recommend")
        second = connect(server)
        assert second.ask(ASKED_FOR + ASKED_FOR[:1], "judge") == ANSWERS + ANSWERS[:1]
        assert sorted(server.prompts) == ASKED_FOR
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
def test_what_changes_the_answer_misses_the_cache(connect, changes, requests):
    with ChatServer() as first:
        connect(first).ask(ASKED_FOR[:2], "judge")
    with ChatServer() as another:  # another endpoint of the same model
        assert connect(another, **changes).ask(ASKED_FOR[:2], "judge") == ANSWERS[:2]
        assert len(another.asked) == requests


def test_usage_is_kept_by_purpose_and_asks_of_a_purpose_add_up(connect):
    with ChatServer() as server:
        client = connect(server)
        client.ask(ASKED_FOR[:2], "recommend")
        client.ask(ASKED_FOR[2:4], "judge")
        client.ask(ASKED_FOR[2:7], "judge")
    usage = client.usage()
    assert usage["recommend"]["calls"] == 2 and usage["recommend"]["cached"] == 0
    assert usage["judge"]["calls"] == 5 and usage["judge"]["cached"] == 2
    assert usage["judge"]["prompt_tokens"] == 5 * PROMPT_TOKENS


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": -1, "completion_tokens": 2}, {"prompt_tokens": 10**30}])
def test_an_answer_without_usage_is_counted_by_its_bytes(store, connect, usage):
    prompt = "ééé prompt"  # 13 bytes
    with ChatServer([sent(completion("12345678", usage))]) as server:
        connect(server).ask([prompt], "judge")
    assert store.spent() == Spent(1, 5, 3, pytest.approx((5 * 100 + 3 * 200) / 1e6))


def test_answers_that_end_at_the_limit_are_kept_counted_and_told(connect, caplog):
    cut = completion("1. Heat (1995)\n2. Incep", reported())
    cut["choices"][0]["finish_reason"] = "length"
    with ChatServer([sent(cut)]) as server:
        for _ in range(2):  # then from the cache
            client = connect(server, max_concurrency=1)
            client.ask(ASKED_FOR, "recommend")
            assert client.usage()["recommend"]["cut"] == 1
    assert "recommend: 1 of 8 answers end at demonstrations.teacher.max_completion_tokens" in caplog.text


def test_half_a_surrogate_pair_in_an_answer_is_replaced(connect):
    body = json.dumps(completion("a\ud83db", reported())).encode()
    with ChatServer([Reply(body)]) as server:
        assert connect(server).ask(ASKED_FOR[:1], "judge") == ["a?b"]


def chain_text(error):
    """Return all that an exception shows to a reader."""
    return "\n".join([str(error), repr(error), *traceback.format_exception(error)])


def test_the_key_is_redacted_wherever_the_endpoint_repeats_it(store, connect, caplog):
    caplog.set_level(logging.DEBUG)
    echo = [error(500, message=f"x{KEY}y"), Reply(KEY.encode(), content_type="text/html"), sent({KEY: KEY})]
    with ChatServer([*echo, refused_with_echo]) as server:
        with pytest.raises(InputError, match=r"no such key: Bearer \[key\]") as caught:
            connect(server, max_concurrency=1, max_retries=9).ask(ASKED_FOR, "judge")
        assert len(server.asked) == 4
    assert KEY not in chain_text(caught.value) and caught.value.__context__ is None
    assert "[key]" in caplog.text and KEY not in caplog.text
    reply = sent(completion(f"your key is {KEY}", reported()))
    with ChatServer([reply]) as server:
        assert connect(server).ask(ASKED_FOR[:1], "judge") == ["your key is [key]"]
    files = [path.read_bytes() for path in store.path.parent.iterdir()]
    assert any(b"[key]" in content for content in files) and not any(KEY.encode() in content for content in files)


def test_half_a_key_is_not_told(connect, caplog):
    padding = "x" * (chat.DETAIL_LENGTH - len(KEY) // 2)
    with ChatServer([error(401, message=padding + KEY)]) as server, pytest.raises(InputError) as caught:
        connect(server).ask(ASKED_FOR[:1], "judge")
    assert KEY[:4] not in chain_text(caught.value) + caplog.text


def test_a_word_as_key_is_left_in_answers(connect, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "answer")
    with ChatServer() as server:
        assert connect(server).ask(ASKED_FOR, "judge") == ANSWERS


def test_a_missing_key_is_told_before_any_work(connect, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", " ")
    with pytest.raises(InputError, match="OPENAI_API_KEY is not set.*demonstrations.teacher.base_url"):
        connect(SimpleNamespace(url=None))
    with ChatServer([answered, refused_with_echo]) as server:
        client = connect(server)
        assert client.ask(ASKED_FOR[:1], "judge") == ANSWERS[:1], "an endpoint of one's own needs none"
        with pytest.raises(InputError, match="OPENAI_API_KEY is not set"):
            client.ask(ASKED_FOR[1:2], "judge")


@pytest.mark.parametrize("key", ["sk-a\nb", "sk-ключ", "sk-\x00"])
def test_a_key_that_no_header_can_hold_is_told(connect, monkeypatch, key):
    monkeypatch.setattr(os, "environ", os.environ | {"OPENAI_API_KEY": key})
    with pytest.raises(InputError, match="OPENAI_API_KEY holds characters") as caught:
        connect(SimpleNamespace(url="http://127.0.0.1:1"))
    assert key not in chain_text(caught.value)


def test_blanks_around_the_key_are_left_out(connect, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    with ChatServer() as server:
        connect(server).ask(ASKED_FOR[:1], "judge")
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
