"""`convrec chat`: turns, commands, and how it ends."""

import sys
from io import StringIO

from convrec.service.session import Session
from tests.service.recommending import make_recommender

RECOMMENDER = make_recommender()


def lines(conversation, *arguments):
    return [str(item) for item in RECOMMENDER.recommend([conversation], *arguments)[0]]


def _items(table):
    return [line[6:].split("  ")[0] for line in table.partition("rank  item")[2].splitlines()[1:]]


def test_chat_ends_with_its_input_or_quit(project, monkeypatch, cli):
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "stdin", StringIO("I loved Heat\n/nonsense\n"))
    shown = cli("chat", "--model", "model", "-n", "2").out
    assert shown.count("rank  item") == 1 and "/nonsense is not a command" in shown
    monkeypatch.setattr(sys, "stdin", StringIO("/quit\nnever read\n"))
    assert "bye" in cli("chat", "--model", "model").out
    assert "--deny: 'Haet' is not in the catalog" in cli("chat", "--model", "model", "--deny", "Haet").err


def test_a_session_remembers_turns_and_denied_titles():
    session = Session(RECOMMENDER, 4, deny=["Jaws"])
    assert session.answer("/more") == "the conversation is empty; say what you would like"
    first = _items(session.answer("I loved Heat"))
    assert first == lines("I loved Heat", 4, ["Jaws"])
    assert _items(session.answer("/more")) == lines("I loved Heat", 4, ["Jaws", *first])
    assert _items(session.answer(f"/deny {first[0]}")) == lines("I loved Heat", 4, ["Jaws", first[0]])
    answered = {"role": "assistant", "content": "Here are some films."}
    second = [{"role": "user", "content": "I loved Heat"}, answered, {"role": "user", "content": "no space"}]
    assert _items(session.answer(" no space ")) == lines(second, 4, ["Jaws", first[0]])
    assert len(_items(session.answer("/n 2"))) == 2
    assert session.answer("/deny Haet") == "/deny: 'Haet' is not in the catalog; did you mean 'Heat'?"
    assert session.answer("/n two").startswith("/n two: give a number")
    assert session.answer("/reset") == "a new conversation" and session.answer("/deny Up") == "noted"
    assert _items(session.answer("I loved Heat")) == lines("I loved Heat", 2, ["Jaws", "Up"])


def test_a_session_refers_to_its_last_list_and_starts_over():
    session = Session(RECOMMENDER, 3)
    first = _items(session.answer("I loved Heat"))
    answer = session.answer("not the first one")
    assert f"I understood: not {first[0].rpartition(' (')[0]}; like: Heat" in answer and first[0] not in _items(answer)
    second = _items(answer)
    assert not {*second, first[0]} & set(_items(session.answer("I have seen those")))
    assert _items(session.answer("Start over: something like Up")) == lines("Start over: something like Up", 3)


def test_a_misspelt_title_is_offered():
    session = Session(RECOMMENDER, 3)
    assert session.answer("something like Casablanka").startswith("not used: casablanka (did you mean Casablanca?)\n")
    told = "not used: casablanka (did you mean Casablanca?) · caramel\n"
    assert session.answer("something like caramel").startswith(told)


def test_a_turn_that_cannot_be_answered_is_forgotten():
    session = Session(RECOMMENDER, 14, allow=["Heat", "Her", "Up"])
    assert session.answer("I loved Heat, Her, and Up too").startswith("n = 14: 0 of the catalog's 15 items")
    assert sorted(_items(session.answer("I loved Heat"))) == ["Her (1978)", "Up (1981)"]


def test_a_doubtful_wish_is_asked_back_and_kept_if_the_user_says_yes():
    session = Session(RECOMMENDER, 12)
    asked = session.answer("maybe no crime")
    assert asked.startswith("did you mean: no crime?\n") and len(_items(asked)) == 12
    kept = session.answer("Yes!")
    assert kept.startswith("I understood: no crime; few are left: without 'no crime', there would be 15\n")
    assert _items(kept) == _items(session.answer("/n 12")) and len(_items(kept)) == 9
    session.answer("/reset")
    session.answer("maybe no crime")
    assert session.answer("no").startswith("removed: no crime\n")
    assert session.answer("I loved Up").startswith("like: Up; removed: no crime\n")
    assert session.answer("no crime").startswith("I understood: no crime;")
    assert session.answer("I loved Heat").startswith("I understood: no crime;")
