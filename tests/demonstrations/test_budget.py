import asyncio

from hypothesis import given
from hypothesis import strategies as st

from convrec.demonstrations.budget import Budget, Ledger, estimated_tokens
from convrec.demonstrations.calls import Spent


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
