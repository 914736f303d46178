import pytest
from fastapi.testclient import TestClient

from convrec.data.catalog import Catalog
from convrec.errors import InputError
from convrec.registry import recommenders
from convrec.registry.recommenders import load_models
from convrec.serving.app import server
from convrec.serving.app.server import make_app
from tests.serving.recommending import CATALOG, make_recommender

MODELS = {"champion": make_recommender(0), "challenger": make_recommender(1)}
CLIENT = TestClient(make_app(MODELS))


def _ask(**question):
    return CLIENT.post("/api/recommend", json=question)


def test_models_are_told_in_order():
    expected = [{"name": name, "items": 15, "noun": "films"} for name in ("champion", "challenger")]
    assert CLIENT.get("/api/models").json() == {"models": expected}


def test_both_models_answer_as_their_recommenders_do():
    reply = _ask(conversation="I loved Heat", n=3, deny=["Up"], allow=None)
    assert reply.status_code == 200
    for answered, (name, model) in zip(reply.json()["models"], MODELS.items(), strict=True):
        (expected,) = model.recommend(["I loved Heat"], 3, deny=["Up"])
        assert answered == {"name": name, "recommendations": [vars(r) for r in expected]}
    messages = [{"role": "user", "content": "I loved Heat"}]
    assert _ask(messages=messages, n=3, deny=["Up"]).json() == reply.json()
    assert reply.json()["models"][0]["recommendations"] != reply.json()["models"][1]["recommendations"]


def test_a_title_that_one_of_the_catalogs_has_is_no_error():
    smaller = make_recommender(1, Catalog(CATALOG.items[:8]))
    client = TestClient(make_app({"champion": smaller, "challenger": MODELS["champion"]}))
    reply = client.post("/api/recommend", json={"conversation": "a film", "n": 8, "deny": ["Network"]})
    short, long = ([item["title"] for item in own["recommendations"]] for own in reply.json()["models"])
    assert len(short) == len(long) == 8 and "Network" not in long
    reply = client.post("/api/recommend", json={"conversation": "a film", "n": 1, "allow": ["Network"]})
    assert reply.status_code == 400 and reply.json()["error"].startswith("champion: n = 1: 0 of the catalog's 8")


@pytest.mark.parametrize(
    ("question", "status", "words"),
    [
        ({}, 400, "conversation, messages: give exactly one of the two"),
        ({"conversation": "x", "messages": []}, 400, "conversation, messages: give exactly one of the two"),
        ({"conversation": " "}, 400, "champion: conversation 1: it is empty"),
        ({"conversation": "x", "n": 0}, 400, "champion: n = 0: give a whole number from 1"),
        ({"conversation": "x", "n": 16}, 400, "champion: n = 16: 15 of the catalog's 15 items are left"),
        ({"conversation": "x", "n": 2, "deny": ["Haet"]}, 400, "'Haet' is not in the catalog; did you mean 'Heat'?"),
        ({"messages": [{"role": "narrator", "content": "x"}], "n": 2}, 400, "role 'narrator' is not known"),
        ({"conversation": 7}, 422, "conversation: Input should be a valid string"),
        ({"conversation": "x", "n": "many"}, 422, "n: Input should be a valid integer"),
        ({"conversation": "x", "k": 3}, 422, "k: Extra inputs are not permitted"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_told_in_words(question, status, words):
    reply = _ask(**question)
    assert reply.status_code == status and words in reply.json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 422, "JSON"),
        (b"", 422, "body: Field required"),
        (b'{"conversation": "\xff"}', 400, "parsing the body"),
        (b"[" * 100_000, 400, "parsing the body"),
        (b'{"conversation": "x", "n": ' + b"9" * 5000 + b"}", 400, "parsing the body"),
        (b'{"conversation": "a \\ud800"}', 400, "conversation 1: contains a NUL, or text that is not UTF-8"),
        (b'{"messages": [{"role": "user", "content": "\\udfff"}]}', 400, "text that is not UTF-8"),
        (b'{"messages": [{"role": "\\udfff", "content": "x"}]}', 400, "role '\\udfff' is not known"),
        (b'{"conversation": "x", "deny": ["\\ud800"]}', 400, "deny: '\\ud800' is not in the catalog"),
        (b'{"conversation": "x", "\\ud800": 1}', 422, "body: Input should be a valid string"),
        (b'{"messages": [{"\\ud800": 1}]}', 400, "{'\\ud800': 1} is not a message"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_question_is_told(body, status, words):
    reply = CLIENT.post("/api/recommend", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == status and words in reply.json()["error"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/docs", 404), ("GET", "/api/recommend", 405)])
def test_what_is_not_there_is_told_the_same_way(method, path, status):
    reply = CLIENT.request(method, path)
    assert reply.status_code == status and list(reply.json()) == ["error"]


def test_a_defect_is_told_without_its_insides(monkeypatch):
    client = TestClient(make_app(MODELS), raise_server_exceptions=False)
    monkeypatch.setattr(server, "_ask", lambda *_: 1 / 0)
    reply = client.post("/api/recommend", json={"conversation": "x"})
    assert reply.status_code == 500 and reply.json() == {"error": "the server failed; see its log"}


def test_the_page_loads_nothing_from_elsewhere():
    for path, kind in (("/", "text/html"), ("/style.css", "text/css"), ("/page.js", "text/javascript")):
        reply = CLIENT.get(path)
        assert reply.headers["content-type"].startswith(kind) and "//" not in reply.text.replace("// ", "")
        assert "default-src 'self'" in reply.headers["content-security-policy"]
    assert CLIENT.get("/docs").status_code == 404


@pytest.mark.parametrize(
    ("model", "challenger", "loaded"),
    [
        (None, None, {"champion, version 1": "models:/m/1", "challenger, version 2": "models:/m/2"}),
        (None, "none", {"champion, version 1": "models:/m/1"}),
        (None, "folder", {"champion, version 1": "models:/m/1", "folder": "folder"}),
        ("one", None, {"one": "one"}),
        ("one", "two", {"one": "one", "two": "two"}),
    ],
)
def test_which_models_are_shown(model, challenger, loaded, monkeypatch):
    versions = {"champion, version 1": "models:/m/1", "challenger, version 2": "models:/m/2"}
    monkeypatch.setattr(recommenders, "compared_versions", lambda: dict(versions))
    monkeypatch.setattr(recommenders, "open_recommender", str)
    assert load_models(model, challenger) == loaded


def test_a_model_is_not_its_own_challenger():
    with pytest.raises(InputError, match="--challenger one: this is the same as the first model"):
        load_models("one", "one")


def test_an_interrupt_ends_the_server(monkeypatch):
    def interrupted(self, sockets):
        assert sockets[0].getsockname()[0] == "127.0.0.1"
        raise KeyboardInterrupt

    monkeypatch.setattr("uvicorn.Server.run", interrupted)
    with pytest.raises(KeyboardInterrupt):  # of which the command line makes a line and status 130
        server.serve(lambda: MODELS, "127.0.0.1", 0)
