"""`convrec chat`: turns, commands, and how it ends."""

import sys
from io import StringIO

from convrec.service.session import Session
from tests.service.recommending import make_recommender

RECOMMENDER = make_recommender()


def lines(conversation, *arguments):
    return [str(item) for item in RECOMMENDER.recommend([conversation], *arguments)[0]]


def test_chat_ends_with_its_input(project, monkeypatch, cli):
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "stdin", StringIO("I loved Heat\n/nonsense\n"))
    shown = cli("chat", "--model", "model", "-n", "2").out
    assert shown.count("rank  item") == 1 and "/nonsense is not a command" in shown
    assert shown.count("Say what movies you would like; each line is your next turn.") == 2
    monkeypatch.setattr(sys, "stdin", StringIO("/quit\nnever read\n"))
    assert "bye" in cli("chat", "--model", "model").out


def test_chat_ends_with_an_interrupt(project, monkeypatch, cli):
    monkeypatch.chdir(project)
    monkeypatch.setattr("os._exit", sys.exit)

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupted)
    shown = cli("chat", "--model", "model")
    assert (
        shown.status == 130 and shown.out.startswith("Say what movies you would like") and shown.out.endswith("/quit\n")
    )
    assert shown.err.endswith("convrec chat: interrupted\n")


def _items(table):
    return [line[6:].rsplit("  ", 1)[0].strip() for line in table.splitlines()[1:]]


def test_a_session_remembers_turns_and_denied_titles():
    session = Session(RECOMMENDER, 4, deny=["Jaws"])
    assert session.answer("/more") == "the conversation is empty; say what you would like"
    first = _items(session.answer("I loved Heat"))
    assert first == lines("I loved Heat", 4, ["Jaws"])
    more = _items(session.answer("/more"))
    assert more == lines("I loved Heat", 4, ["Jaws", *first]) and not set(more) & set(first)
    assert _items(session.answer("/more")) == lines("I loved Heat", 4, ["Jaws", *first, *more])
    assert session.answer("/more").startswith("n = 4: 1 of the catalog's 15 items are left")
    denied = _items(session.answer(f"/deny {first[0]}"))
    assert denied == lines("I loved Heat", 4, ["Jaws", first[0]])
    answered = {"role": "assistant", "content": "Here are some films."}
    second = [{"role": "user", "content": "I loved Heat"}, answered, {"role": "user", "content": "no space"}]
    assert _items(session.answer(" no space ")) == lines(second, 4, ["Jaws", first[0]])
    assert len(_items(session.answer("/n 2"))) == 2
    assert session.answer("/deny Haet") == "/deny: 'Haet' is not in the catalog; did you mean 'Heat'?"
    assert session.answer("/deny").startswith("/deny: name a title")
    assert session.answer("/n two").startswith("/n two: give a number")
    assert session.answer("/reset") == "a new conversation"
    assert session.answer("/deny Up") == "noted"
    assert _items(session.answer("I loved Heat")) == lines("I loved Heat", 2, ["Jaws", "Up"])
    assert not session.is_over and session.answer("/quit") == "bye" and session.is_over


def test_a_turn_that_cannot_be_answered_is_forgotten():
    session = Session(RECOMMENDER, 14)
    assert session.answer("I loved Heat and Her").startswith("n = 14: 13 of the catalog's 15 items")
    assert _items(session.answer("I loved Heat")) == lines("I loved Heat", 14)
