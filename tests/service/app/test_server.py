import json
from collections.abc import Iterator
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from convrec.data.catalog import Catalog
from convrec.registry import recommenders
from convrec.registry.recommenders import RegistrySource
from convrec.service.app.server import make_app
from convrec.service.feedback import FeedbackRecorder, FeedbackStore
from convrec.service.served import ServedModel
from tests.service.app.serving import make_service
from tests.service.recommending import CATALOG, make_recommender

SCRIPTS = ("/elements.js", "/lists.js", "/page.js", "/share.js", "/titles.js", "/wishes.js")
MODELS = {"champion": make_recommender(0), "challenger": make_recommender(1)}
NAMES = ("Model in use", "New model")
CLIENT = TestClient(make_app(make_service(MODELS), has_page=True))


def _ask(**question):
    return CLIENT.post("/api/recommend", json=question)


def test_both_models_answer_as_their_recommenders_do():
    models = CLIENT.get("/api/models").json()
    expected = [{"name": name, "items": 15, "noun": "films"} for name in NAMES]
    assert models["models"] == expected and models["saved"] == "nothing" and len(models["examples"]) == 3
    assert models["reads"].startswith("I read titles, years and genres, and keep to limits such as “no ")
    reply = _ask(conversation="I loved Heat", n=3, deny=["Up"], allow=None)
    assert reply.status_code == 200
    for answered, words, (name, model) in zip(reply.json()["models"], NAMES, MODELS.items(), strict=True):
        (expected,) = model.recommend(["I loved Heat"], 3, deny=["Up"])
        own = answered.pop("recommendations")
        wishes = [{"text": "Heat", "state": "named", "is_chosen": False}]
        assert answered == {"list": name, "name": words, "wishes": wishes, "drops": []} and [
            item.items() >= vars(r).items() for item, r in zip(own, expected, strict=True)
        ]
        assert [item["item_id"] for item in own] == [CATALOG.items[CATALOG.index_of_line(str(r))].id for r in expected]
    messages = [{"role": "user", "content": "I loved Heat"}]
    assert _ask(messages=messages, n=3, deny=["Up"]).json() == reply.json()
    first, second = (model["recommendations"] for model in reply.json()["models"])
    assert first != second
    items = _ask(messages=messages, n=14).json()["models"][0]["recommendations"]
    reasons = {item["title"]: item["reasons"] for item in items}
    assert reasons["Up"] == ["Like Heat (1975): crime, drama"] and reasons["Casablanca"] == []
    explained = CLIENT.post("/recommend", json={"messages": messages, "n": 14, "reasons": True}).json()
    assert {item["title"]: item["reasons"] for item in explained["recommendations"]} == reasons


def test_an_answer_asks_about_a_doubtful_wish_and_says_which_one_leaves_too_few_items():
    question = {"conversation": "maybe no crime, made before 1980", "n": 12, "or_fewer": True}
    answered = _ask(**question).json()["models"][0]
    assert len(answered["recommendations"]) == 2
    assert answered["wishes"] == [
        {"text": "no crime", "state": "unsure", "question": "Did you mean: no crime?", "is_chosen": False},
        {"text": "before 1980", "state": "kept", "left": 15, "is_chosen": False},
    ]


def test_filters_hold_for_each_of_the_catalogs():
    question = {"conversation": "a film", "n": 5, "allow": ["Up", "Dune"], "or_fewer": True}
    assert [len(model["recommendations"]) for model in _ask(**question).json()["models"]] == [3, 3]
    none_left = _ask(**{**question, "or_fewer": False}, deny=["Up", "Dune"])
    assert none_left.status_code == 400 and "0 of the catalog's 15 items are left" in none_left.json()["error"]
    smaller = make_recommender(1, Catalog(CATALOG.items[:8]))
    client = TestClient(make_app(make_service({"champion": smaller, "challenger": MODELS["champion"]}), has_page=True))
    reply = client.post("/api/recommend", json={"conversation": "a film", "n": 8, "deny": ["Network"]})
    short, long = ([item["title"] for item in own["recommendations"]] for own in reply.json()["models"])
    assert len(short) == len(long) == 8 and "Network" not in long
    reply = client.post("/api/recommend", json={"conversation": "a film", "n": 1, "allow": ["Network"]})
    assert reply.status_code == 400 and reply.json()["error"].startswith("Model in use: n = 1: 0 of the catalog's 8")


def _states(*messages, choices=()):
    """Return the state of each wish in the first model's list, and the texts of those that were switched."""
    said = [{"role": "user", "content": text} for text in messages]
    (own, _) = _ask(messages=said, n=2, choices=choices).json()["models"]
    states = {wish["text"]: wish["state"] for wish in own["wishes"]}
    return states, [wish["text"] for wish in own["wishes"] if wish["is_chosen"]]


def test_a_wish_that_is_stated_again_is_on_again():
    off = {"no crime": False}
    assert _states("no crime, no sci-fi", choices=[off])[0] == {"no crime": "removed", "no sci-fi": "kept"}
    assert _states("no crime", "I loved Up", choices=[off, {}]) == (
        {"no crime": "removed", "Up": "named"},
        ["no crime"],
    )
    assert _states("no crime", "I said no crime, please", choices=[off, {}]) == ({"no crime": "kept"}, [])
    again = _states("no crime", "no crime, please", "I loved Up", choices=[off, {}, {}])
    assert again == ({"no crime": "kept", "Up": "named"}, [])
    assert _states("no crime", "no crime, please", choices=[off, off])[0] == {"no crime": "removed"}
    assert _states("maybe no crime", choices=[{"no crime": True}]) == ({"no crime": "kept"}, ["no crime"])


def test_a_short_list_names_what_to_drop():
    question = {"conversation": "only sci-fi, nothing before 2000", "n": 10, "or_fewer": True}
    own = _ask(**question).json()["models"][0]
    assert [item["title"] for item in own["recommendations"]] == ["Dune"]
    assert own["drops"] == [
        {"kind": "wish", "text": "only sci-fi", "items": 4},
        {"kind": "wish", "text": "since 2000", "items": 2},
    ]
    question["deny"] = ["Dune (2021)"]
    assert _ask(**question).json()["models"][0]["drops"] == []  # a wish that no item fits is not applied
    question = {"conversation": "I loved Heat", "n": 3, "or_fewer": True}
    both = {"allow": ["Up", "Her"], "deny": ["Up"]}
    for filters, drops in (({"allow": ["Heat"]}, {"allow": 3}), (both, {"allow": 3, "deny": 2})):
        own = _ask(**question, **filters).json()["models"][0]
        assert len(own["recommendations"]) == len(drops) - 1
        assert own["drops"] == [{"kind": kind, "text": "", "items": items} for kind, items in drops.items()]


@pytest.mark.parametrize(
    ("text", "is_known", "suggestions"),
    [
        ("Heat", True, ["Heat (1975)"]),
        ("ame", False, ["Amélie (1999)"]),
        ("dune", True, ["Dune (1984)", "Dune (2021)"]),
        ("Haet", False, ["Heat (1975)"]),
        ("Haet (1975)", False, ["Heat (1975)"]),
        ("zzzzzz", False, []),
        (" ", False, []),
    ],
)
def test_titles_are_suggested_without_asking_a_model(text, is_known, suggestions, monkeypatch):
    monkeypatch.setattr(ServedModel, "ask", lambda *_, **__: 1 / 0)
    reply = CLIENT.get("/api/titles", params={"text": text})
    assert reply.json() == {"is_known": is_known, "suggestions": suggestions}


@pytest.fixture
def recorder(tmp_path) -> Iterator[FeedbackRecorder]:
    made = FeedbackRecorder(tmp_path / "journal", f"sqlite:///{tmp_path}/feedback.db")
    yield made
    made.close()


def _outcomes(recorder: FeedbackRecorder, tmp_path) -> list[dict]:
    """Return what the database has, one row for each shown item, after everything is delivered."""
    recorder.close()
    return FeedbackStore(f"sqlite:///{tmp_path}/feedback.db").outcomes().to_dicts()


def test_feedback_is_recorded_for_what_the_page_showed(recorder, tmp_path):
    client = TestClient(make_app(make_service(MODELS, recorder), has_page=True))
    assert client.get("/api/models").json()["saved"] == "answers"
    start = client.post("/api/recommend", json={"conversation": "Some films, please", "n": 2, "is_start": True}).json()
    assert start["answer_id"] is None and len(start["models"][0]["recommendations"]) == 2
    answered = client.post("/api/recommend", json={"conversation": "I loved Heat", "n": 2}).json()
    item = answered["models"][1]["recommendations"][1]
    event = {"answer_id": answered["answer_id"], "list": "challenger", "item_id": item["item_id"], "event": "accepted"}
    assert client.post("/feedback", json=event).status_code == 200
    for change, status, words in [
        ({"answer_id": "x"}, 400, "answer_id: 'x' is unknown"),
        ({"item_id": "x"}, 400, "'x' was not shown"),
        ({"event": "x"}, 422, "event: Input should be 'accepted'"),
    ]:
        reply = client.post("/feedback", json={**event, **change})
        assert reply.status_code == status and words in reply.json()["error"]
    plain = client.post("/feedback", content=json.dumps(event), headers={"Content-Type": "text/plain"})
    assert plain.status_code == 422, "a page of another site could send this"
    rows = _outcomes(recorder, tmp_path)
    shown = [(row["list"], row["rank"], row["item_id"], row["version"]) for row in rows]
    assert sorted(shown) == sorted(
        (own["list"], item["rank"], item["item_id"], own["list"])
        for own in answered["models"]
        for item in own["recommendations"]
    )
    assert [row["item_id"] for row in rows if row["accepted"]] == [item["item_id"]]


def test_answers_of_the_api_are_recorded_with_their_user(recorder, tmp_path):
    service = make_service({"champion": MODELS["champion"]}, recorder)
    client = TestClient(make_app(service, has_page=False))
    question = {"conversation": "a film", "n": 4, "user_id": " u1\u200b"}
    answered = client.post("/recommend", json=question).json()
    event = {
        "answer_id": str(UUID(answered["answer_id"])).upper(),
        "item_id": answered["recommendations"][2]["item_id"],
    }
    for _ in range(2):
        assert client.post("/feedback", json={**event, "event": "watched", "event_id": "e1"}).json() == {}
    empty = client.post("/recommend", json={**question, "allow": [], "or_fewer": True})
    assert empty.status_code == 200 and empty.json()["recommendations"] == [] and empty.json()["answer_id"]
    assert client.post("/recommend", json={**question, "allow": []}).status_code == 400
    columns = ("answer_id", "rank", "item_id", "version", "user_id", "list", "watched")
    assert [tuple(row[name] for name in columns) for row in _outcomes(recorder, tmp_path)] == [
        (answered["answer_id"], item["rank"], item["item_id"], "champion", "u1", "", item["rank"] == 3)
        for item in answered["recommendations"]
    ]
    assert FeedbackStore(f"sqlite:///{tmp_path}/feedback.db").answers().height == 2


def test_feedback_that_cannot_be_saved_costs_no_answer(recorder, monkeypatch):
    service = make_service(MODELS, recorder)
    client = TestClient(make_app(service, has_page=True))
    question = {"conversation": "a film", "n": 1}
    answered = client.post("/api/recommend", json=question).json()
    monkeypatch.setattr("os.write", lambda *_: 0)  # as where the disk is full
    item_id = answered["models"][0]["recommendations"][0]["item_id"]
    event = {"answer_id": answered["answer_id"], "list": "champion", "item_id": item_id, "event": "rejected"}
    reply = client.post("/feedback", json=event)
    assert reply.status_code == 503 and "the disk is full; send it again later" in reply.json()["error"]
    reply = client.post("/api/recommend", json=question).json()
    assert reply["answer_id"] is None and reply["models"] == answered["models"]
    assert CLIENT.post("/feedback", json=event).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{}", 400, "conversation, messages: give exactly one of the two"),
        (b'{"conversation": " "}', 400, "Model in use: conversation 1: it is empty"),
        (b'{"conversation": "x", "deny": ["Haet"]}', 400, "'Haet' is not in the catalog; did you mean 'Heat'?"),
        (b'{"conversation": "x", "n": "many"}', 422, "n: Input should be a valid integer"),
        (b'{"conversation": "x", "k": 3}', 422, "k: Extra inputs are not permitted"),
        (b'{"conversation": "%b"}' % (b"x" * 50_001), 413, "50,001 characters, 0 messages; send at most 50,000"),
        (b'{"messages": [%b{}]}' % (b"{}," * 1_000), 413, "0 characters, 1,001 messages"),
        (b'{"messages": [%b{}]}' % (b"{}," * 999), 400, "{} is not a message"),
        (b'{"conversation": "x", "deny": ["%b"]}' % (b"x" * 1_001), 422, "deny.0: String should have at most 1000"),
        (b"{", 422, "JSON"),
        (b'{"conversation": "\xff"}', 400, "parsing the body"),
        (b"[" * 100_000, 400, "parsing the body"),
        (b'{"conversation": "a film", "user_id": "a\\u0000"}', 422, "user_id: Value error, NUL or half a character"),
        (b'{"conversation": "a \\ud800"}', 400, "conversation 1: contains a NUL, or text that is not UTF-8"),
        (b'{"messages": [{"role": "\\udfff", "content": "x"}]}', 400, "'\\udfff', 'content': 'x'} is not a message"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_told_in_words(body, status, words):
    reply = CLIENT.post("/api/recommend", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == status and words in reply.json()["error"]


def test_a_defect_is_told_without_its_insides(monkeypatch):
    monkeypatch.setattr(ServedModel, "ask", lambda *_, **__: 1 / 0)
    reply = CLIENT.post("/api/recommend", json={"conversation": "x"}, headers={"X-Request-ID": "mine"})
    assert reply.status_code == 500 and reply.json() == {"error": "the server failed; see its log"}
    assert reply.headers["X-Request-ID"] == "mine"


def test_the_page_loads_nothing_from_elsewhere():
    kinds = {"/": "text/html", "/style.css": "text/css", **dict.fromkeys(SCRIPTS, "text/javascript")}
    for path, kind in kinds.items():
        reply = CLIENT.get(path)
        assert reply.headers["content-type"].startswith(kind) and "//" not in reply.text.replace("// ", "")
        assert "default-src 'self'" in reply.headers["content-security-policy"]
    for method, path, status in (("GET", "/docs", 404), ("POST", "/api/models", 405)):
        reply = CLIENT.request(method, path)
        assert reply.status_code == status and list(reply.json()) == ["error"]


@pytest.mark.parametrize(
    ("model", "challenger", "wanted"),
    [
        (None, None, {"champion": "1", "challenger": "2"}),
        (None, "none", {"champion": "1"}),
        (None, "folder", {"champion": "1", "folder": "folder"}),
        ("one", None, {"one": "one"}),
        ("one", "two", {"one": "one", "two": "two"}),
    ],
)
def test_which_models_are_wanted(model, challenger, wanted, monkeypatch):
    versions = {"champion": "1", "challenger": "2"}
    monkeypatch.setattr(
        recommenders, "served_versions", lambda with_challenger: dict(list(versions.items())[: 1 + with_challenger])
    )
    monkeypatch.setattr(recommenders.mlflow, "MlflowClient", lambda: None)  # it would make a database in this folder
    monkeypatch.setattr(recommenders, "running_experiment", lambda client, champion: None)
    assert RegistrySource(model, challenger, ServedModel).wanted() == wanted
