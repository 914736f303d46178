"""Limits on tokens and money: calls stop before one would break them."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.demonstrations.budget import Budget, Ledger, estimated_tokens
from convrec.demonstrations.calls import Spent
from convrec.errors import InputError
from tests.demonstrations.chat_server import (
    ANSWERS,
    ASKED_FOR,
    COMPLETION_TOKENS,
    COST,
    NULL_CONTENT,
    PROMPT_TOKENS,
    ChatServer,
    answer_to,
    completion,
    reported,
    sent,
)

# An unclosed client, connection, database or event loop fails the test.
pytestmark = pytest.mark.filterwarnings("error")


def test_tokens_are_estimated_from_bytes():
    assert [estimated_tokens(text) for text in ("", "a", "abc", "abcd", "ééé")] == [0, 1, 1, 2, 2]


@given(
    limit=st.integers(0, 300),
    calls=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 50), st.floats(0, 1)), max_size=30),
    workers=st.integers(1, 8),
)
def test_no_schedule_of_calls_breaks_a_limit(limit, calls, workers):
    """Calls that take up to what they reserve, in any interleaving, stay within; a plain sum is the oracle."""
    budget = Budget(limit, limit / 1e6, 1.0, 1.0)
    taken, refused = [], []

    async def work(ledger, left):
        for prompt_tokens, completion_tokens, share in left:
            if await ledger.reserve(prompt_tokens, completion_tokens):
                refused.append(prompt_tokens + completion_tokens)
                continue
            for _ in range(completion_tokens % 4):
                await asyncio.sleep(0)
            used = int(share * completion_tokens)
            taken.append(prompt_tokens + used)
            ledger.spend(prompt_tokens, used, budget.cost(prompt_tokens, used))
            assert ledger.tokens <= limit
            ledger.settle(prompt_tokens, completion_tokens)

    async def run():
        ledger, left = Ledger(budget, Spent(0, 0, 0, 0.0)), iter(calls)
        await asyncio.gather(*(work(ledger, left) for _ in range(workers)))
        return ledger

    ledger = asyncio.run(run())
    assert ledger.tokens == sum(taken) <= limit
    assert len(taken) + len(refused) == len(calls)
    if sum(prompt + completion for prompt, completion, _ in calls) < limit:
        assert not refused
    assert ledger.limit_for(0, limit - sum(taken) + 1) == "max_tokens", "nothing stays reserved"


NEEDED = 3 + 50  # tokens reserved for a prompt of 8 bytes
NEEDED_COST = (3 * 100 + 50 * 200) / 1e6
USED = PROMPT_TOKENS + COMPLETION_TOKENS


def test_a_budget_of_tokens_stops_cleanly_and_raised_goes_on(connect):
    budget = Budget(NEEDED + 2 * USED, None, 100.0, 200.0)  # after two calls a third fits, after three no fourth
    with ChatServer() as server:
        with pytest.raises(InputError) as caught:
            connect(server, budget=budget, max_concurrency=1).ask(ASKED_FOR, "judge")
        assert len(server.asked) == 3
        assert f"demonstrations.teacher.budget.max_tokens = {NEEDED + 2 * USED}" in str(caught.value)
        assert f"{3 * USED} tokens" in str(caught.value) and "3 of 8 prompts are kept" in str(caught.value)
        with pytest.raises(InputError, match="max_tokens"):
            connect(server, budget=budget).ask(ASKED_FOR, "judge")
        assert len(server.asked) == 3, "the limit is of the file, not of a run"
        assert connect(server, budget=budget).ask(ASKED_FOR[:3], "judge") == ANSWERS[:3], "cached is free"
        raised = Budget(NEEDED + 7 * USED, None, 100.0, 200.0)
        assert connect(server, budget=raised).ask(ASKED_FOR, "judge") == ANSWERS
        assert sorted(server.prompts) == ASKED_FOR, "each asked once in all"


def test_a_budget_of_money_stops_cleanly_and_raised_goes_on(connect):
    limit = NEEDED_COST + 2.5 * COST
    with ChatServer() as server:
        with pytest.raises(InputError, match=r"demonstrations\.teacher\.budget\.max_cost = 0\.0"):
            client = connect(server, budget=Budget(None, limit, 100.0, 200.0), max_concurrency=1)
            client.ask(ASKED_FOR, "judge")
        assert len(server.asked) == 3 and client.usage()["judge"]["cost"] == pytest.approx(3 * COST)
        raised = Budget(None, 1.0, 100.0, 200.0)
        assert connect(server, budget=raised).ask(ASKED_FOR, "judge") == ANSWERS
        assert len(server.asked) == 8


def test_prices_of_zero_cost_nothing(connect):
    with ChatServer() as server:
        client = connect(server, budget=Budget(None, 0.0, 0.0, 0.0))
        assert client.ask(ASKED_FOR, "judge") == ANSWERS


@pytest.mark.parametrize(("room", "rest"), [(1, 0), (2, 1), (11, NEEDED - 1)])
def test_calls_in_flight_never_exceed_the_budget(store, connect, room, rest):
    """Every call takes all that was reserved for it: one too many would break the limit."""
    limit = room * NEEDED + rest
    script = lambda asked: sent(completion(answer_to(asked.prompt), reported(3, 50)))  # noqa: E731
    prompts = [f"prompt{n:02d}" for n in range(40)]
    with ChatServer(script, latency=0.005) as server:
        with pytest.raises(InputError, match="max_tokens"):
            connect(server, budget=Budget(limit, None, 0.0, 0.0), max_concurrency=16).ask(prompts, "judge")
        assert len(server.asked) == room and server.most_at_once <= room
    spent = store.spent()
    assert spent.prompt_tokens + spent.completion_tokens == room * NEEDED <= limit


def test_a_call_waits_for_those_in_flight_to_give_their_reservation_back(connect):
    """There is room to reserve two, and true usage for all eight."""
    with ChatServer(together=2) as server:
        budget = Budget(2 * NEEDED + 6 * USED, None, 0.0, 0.0)
        assert connect(server, budget=budget, max_concurrency=8).ask(ASKED_FOR, "judge") == ANSWERS
        assert server.most_at_once >= 2


def test_completions_without_text_are_paid_for(store, connect):
    """A model that thinks until its tokens are spent answers nothing, and every retry costs."""
    with ChatServer(lambda asked: NULL_CONTENT) as server:
        budget = Budget(NEEDED + 2 * USED, None, 100.0, 200.0)
        with pytest.raises(InputError, match="max_tokens"):
            connect(server, budget=budget, max_retries=100).ask(ASKED_FOR[:1], "judge")
        assert len(server.asked) == 3
    assert store.spent() == Spent(0, 3 * PROMPT_TOKENS, 3 * COMPLETION_TOKENS, pytest.approx(3 * COST))
