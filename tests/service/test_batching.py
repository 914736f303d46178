"""Continuous batching gives the lists that the recommender gives one at a time."""

import random
import time

import pytest

from convrec.service.batching import Batcher
from convrec.service.translation import Prepared
from tests.service.recommending import CATALOG, SETTINGS, WORDS, make_recommender

RECOMMENDER = make_recommender()
LINES = [str(item) for item in CATALOG.items]


@pytest.fixture
def steps() -> list[int]:
    return []


@pytest.fixture
def batcher(steps):
    translator = RECOMMENDER.translator
    end = translator.tokenizer.eos_token_id
    made = Batcher(RECOMMENDER.model, translator.trie, end, SETTINGS.repetition_penalty, 6, steps.append)
    yield made
    made.close()


def _random_request(chance: random.Random) -> dict:
    words = " ".join(chance.choices(WORDS.split(), k=chance.randint(1, 60)))
    others = (f"Assistant: {chance.choice(LINES)}\nUser: no" for _ in range(chance.randint(0, 2)))
    allow = chance.sample(LINES, 9) if chance.random() < 0.3 else None
    return {
        "conversation": "\n".join([f"User: {words}", *others]),
        "n": chance.randint(1, 5),
        "deny": chance.sample(LINES, chance.randint(0, 2)),
        "allow": allow,
    }


def _prepare(conversation, **options) -> Prepared:
    (asked,) = RECOMMENDER.translator.prepare([conversation], **options)
    return asked


def _lines(tokens):
    return [str(item) for item in RECOMMENDER.translator.items(tokens)]


def test_lists_of_requests_that_join_at_random_are_those_asked_alone(batcher, steps):
    chance = random.Random(0)
    requests = [_random_request(chance) for _ in range(60)]
    expected = []
    for request in requests:
        options = {name: value for name, value in request.items() if name != "conversation"}
        expected.append([str(r) for r in RECOMMENDER.recommend([request["conversation"]], **options)[0]])
    futures = []
    for request in requests:
        before = len(steps)
        futures.append(batcher.submit(_prepare(**request)))
        wait = chance.choice((0, 0, 1, 3, 9))  # steps until the next request comes
        while len(steps) < before + wait and not all(future.done() for future in futures):
            time.sleep(0.0005)
    assert [_lines(future.result(60)) for future in futures] == expected
    assert max(steps) == 6 and len(set(steps)) > 3, "requests joined and left"


def test_a_cancelled_request_is_not_computed_further(batcher, steps):
    """Neither a running nor a waiting one; the others go on."""
    first = [batcher.submit(_prepare("a film", n=15)) for _ in range(6)]
    waiting = batcher.submit(_prepare("a film", n=15))
    patient = batcher.submit(_prepare("a film", n=2))
    while batcher.num_running < 6:
        time.sleep(0.0005)
    assert all(future.cancel() for future in (*first, waiting))
    assert len(_lines(patient.result(60))) == 2
    assert batcher.num_running == 0 and sum(steps) < 6 * 15 * 3 and steps[-1] == 1


def test_a_failed_step_ends_its_lists_and_no_others(batcher, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(RECOMMENDER.model, "forward", lambda **_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            batcher.submit(_prepare("a film", n=2)).result(60)
    assert batcher.is_alive and len(_lines(batcher.submit(_prepare("a film", n=2)).result(60))) == 2


def test_closing_finishes_what_was_asked(batcher):
    futures = [batcher.submit(_prepare("a film", n=3)) for _ in range(9)]
    batcher.close()
    assert [len(_lines(future.result(0))) for future in futures] == [3] * 9 and not batcher.is_alive
    with pytest.raises(RuntimeError, match="the engine is closed"):
        batcher.submit(_prepare("a film", n=3))
