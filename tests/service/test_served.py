"""Requests that are decoded together get the lists that the recommender gives one at a time."""

import asyncio
import random
import threading

import pytest

from convrec.data.catalog import Catalog
from convrec.service.served import Batcher, ServedModel
from tests.service.recommending import CATALOG, LOOP, WORDS, make_recommender, served

RECOMMENDER = make_recommender()
LINES = [str(item) for item in CATALOG.items]


@pytest.fixture
def sizes() -> list[int]:
    """Those of the batches."""
    return []


@pytest.fixture
def model(sizes) -> ServedModel:
    return ServedModel("1", RECOMMENDER.translator, Batcher(RECOMMENDER.complete, 6, sizes.append))


def _random_request(chance: random.Random) -> dict:
    words = " ".join(chance.choices(WORDS.split(), k=chance.randint(1, 60)))
    allow = chance.sample(LINES, 9) if chance.random() < 0.3 else None
    deny = chance.sample(LINES, chance.randint(0, 2))
    return {"conversation": words, "n": chance.randint(1, 5), "deny": deny, "allow": allow}


def test_lists_that_are_decoded_together_are_those_asked_alone(model, sizes):
    chance = random.Random(0)
    requests = [_random_request(chance) for _ in range(40)]

    async def ask_all():
        return await asyncio.gather(*(model.ask(**request) for request in requests))

    for request, answered in zip(requests, asyncio.run(ask_all()), strict=True):
        expected = RECOMMENDER.recommend(request.pop("conversation"), **request)
        assert [str(item) for item in answered.items] == [str(row) for row in expected]
    assert sum(sizes) == 40 and 1 < max(sizes) <= 6


def test_a_failed_batch_ends_its_lists_and_a_cancelled_request_is_not_decoded(model, sizes, monkeypatch):
    async def ask_in_vain():
        with monkeypatch.context() as patch:
            patch.setattr(RECOMMENDER._engine._model, "forward", lambda **_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await model.ask("a film", n=2)
        asked = [asyncio.create_task(model.ask("a film", n=2)) for _ in range(8)]
        while len(sizes) < 2:
            await asyncio.sleep(0)
        for task in asked:
            task.cancel()
        return await model.ask("a film", n=2)

    assert len(asyncio.run(ask_in_vain()).items) == 2
    assert sizes[0] == 1 and sizes[-1] == 1 and sum(sizes) < 10


def test_work_on_a_conversation_ends_with_its_request(model, monkeypatch):
    """One thread read all conversations, and nothing ended it: a chat template that loops held up all requests."""
    tokenizer = RECOMMENDER.translator.tokenizer
    template = "{% if 'loop' in messages[-1].content %}" + LOOP + "{% endif %}" + tokenizer.chat_template
    monkeypatch.setattr(tokenizer, "chat_template", template)
    expected = RECOMMENDER.recommend("a film", 3)

    async def ask():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(model.ask("loop", n=3), 0.2)
        return await asyncio.wait_for(model.ask("a film", n=3), 30)

    assert [str(item) for item in asyncio.run(ask()).items] == [str(row) for row in expected]
    for thread in threading.enumerate():
        if thread.name == "call":
            thread.join(30)
            assert not thread.is_alive()


def test_a_warm_model_has_read_the_spellings_of_its_catalog(monkeypatch):
    model, read = served("1", make_recommender(catalog=Catalog(CATALOG.items))), []
    model.warm()
    monkeypatch.setattr("convrec.data.catalog.spellings", lambda title: read.append(title) or {"heat"})
    assert model.translator.knows("HEAT!") and read == ["HEAT!"]
