"""A chat model reads wishes in any language; where it fails or is late, the built-in reader does."""

import asyncio
import json
import time

import numpy as np
import pytest

from convrec.data.catalog import Catalog, Item
from convrec.project.errors import InputError
from convrec.service import chat_reader
from convrec.service.chat_reader import MODEL, URL, ChatReader, make_reader
from tests.demonstrations.chat_server import BROKEN_JSON, HANG, ChatServer, completion, error, sent
from tests.service.recommending import CATALOG as SERVED
from tests.service.recommending import make_recommender, served

CATALOG = Catalog(
    [
        Item("Alien", 1979, {"genre": "horror, sci-fi", "runtime": "117"}),
        Item("Big", 1988, {"genre": "comedy", "runtime": "104"}),
        Item("Titanic", 1997, {"genre": "romance", "runtime": "194"}),
    ]
)
SHOWN = {"role": "assistant", "content": "Te gustará.", "items": ["Alien (1979)", "Big (1988)"]}
ASKED = [{"role": "user", "content": "una comedia"}, SHOWN, {"role": "user", "content": "nada de terror"}]


def _wish(kind, column="", value="", least=None, most=None):
    return {"kind": kind, "column": column, "value": value, "least": least, "most": most}


def _reply(*wishes):
    return sent(completion(json.dumps({"wishes": wishes})))


def _reader(server, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv(MODEL, "some-model")
    monkeypatch.setenv(URL, server.url)
    return make_reader(CATALOG)


def test_wishes_are_those_of_the_answer_and_each_conversation_is_asked_once(monkeypatch):
    said = [
        _wish("asked", "genre", "comedy"), _wish("excluded", "genre", "horror"), _wish("less", "genre", "romance"),
        _wish("only", "genre", "sci-fi"), _wish("limit", "year", least=1980), _wish("limit", "runtime", most=120.0),
        _wish("liked", value="Big (1988)"), _wish("not_again", value="Titanic"), _wish("unused", value="lento"),
        _wish("excluded", "genre", "western"),
    ]  # fmt: skip
    with ChatServer([_reply(*said)]) as server:
        reader = _reader(server, monkeypatch)
        found = reader.read(ASKED)
        assert reader.read(ASKED) is found and len(server.asked) == 1
    assert [(wish.text, wish.state, wish.is_asked) for wish in found] == [
        ("comedy", "preferred", True), ("no horror", "kept", False), ("less romance", "preferred", False),
        ("only sci-fi", "kept", False), ("since 1980", "kept", False), ("at most 120 minutes", "kept", False),
        ("Big", "named", False), ("not Titanic", "kept", False), ("lento", "unknown", False),
        ("no western", "unknown", False),
    ]  # fmt: skip
    masks = [np.flatnonzero(wish.fits).tolist() for wish in found if wish.fits is not None]
    assert masks == [[1], [1, 2], [0, 1], [0], [1, 2], [0, 1], [0, 1]]
    prompt, schema = server.prompts[0], server.asked[0].body["response_format"]["json_schema"]
    assert "- genre: comedy, horror, romance, sci-fi" in prompt and "numbers: year, runtime" in prompt
    assert "Alien (1979); Big (1988)" in prompt and "nada de terror" in prompt and schema["strict"]


@pytest.mark.parametrize(
    "fault", [BROKEN_JSON, error(401), sent(completion("[]")), _reply({"kind": "asked"}), _reply(3)]
)
def test_the_built_in_reader_reads_what_the_model_does_not(fault, monkeypatch, caplog):
    with ChatServer(lambda _: fault) as server:
        reader = _reader(server, monkeypatch)
        found = reader.read([{"role": "user", "content": "no horror"}])
    assert [wish.text for wish in found] == ["no horror"] and "the built-in reader reads instead" in caplog.text


def test_an_answer_that_is_late_is_not_waited_for_and_the_model_rests(monkeypatch):
    monkeypatch.setattr(chat_reader, "SECONDS", 0.2)
    late, other = ([{"role": "user", "content": text}] for text in ("no horror", "no comedy"))
    with ChatServer([HANG]) as server:
        reader, start = _reader(server, monkeypatch), time.monotonic()
        assert [wish.text for read in (late, late, other) for wish in reader.read(read)] == [
            "no horror", "no horror", "no comedy",
        ]  # fmt: skip
        assert time.monotonic() - start < 4 and len(server.asked) == 1


def test_a_key_or_an_endpoint_is_needed(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv(URL, raising=False)
    monkeypatch.setenv(MODEL, "some-model")
    with pytest.raises(
        InputError, match="OPENAI_API_KEY has no key; export it, or name an endpoint in CONVREC_WISHES_URL"
    ):
        make_reader(CATALOG)


def test_without_a_model_the_built_in_reader_reads(monkeypatch):
    monkeypatch.delenv(MODEL, raising=False)
    assert not isinstance(make_reader(CATALOG), ChatReader)


def test_requests_wait_for_their_answers_side_by_side_and_lists_keep_the_wishes(monkeypatch):
    named = str(SERVED.items[0])
    with ChatServer(lambda _: _reply(_wish("not_again", value=named)), together=4) as server:
        monkeypatch.setenv(MODEL, "some-model")
        monkeypatch.setenv(URL, server.url)
        model = served("1", make_recommender())

        async def ask_all():
            return await asyncio.gather(*(model.ask(f"algo {place}", n=3) for place in range(4)))

        for answered in asyncio.run(ask_all()):
            assert named not in map(str, answered.items) and [wish.state for wish in answered.wishes] == ["kept"]
        assert server.most_at_once == 4 and len(server.asked) == 4
