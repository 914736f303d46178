"""The teacher that is a chat model: its prompts, its lists and ratings, and its descriptions of items."""

import re
import shutil

import numpy as np
import pytest

from convrec.data.catalog import Item
from convrec.demonstrations.teachers import llm
from convrec.demonstrations.teachers.llm import (
    PASSAGE_LENGTH,
    PASSAGES,
    LLMTeacher,
    Prompts,
    find_passages,
    metadata_text,
)
from convrec.project.errors import InputError
from tests.demonstrations.chat_server import ChatServer, completion, error, reported, sent
from tests.small_project import ROOT

MOVIES = {"item": "movie", "items": "movies", "release": "release", "people": "the director"}
PROMPTS = Prompts(ROOT / "prompts", MOVIES)
GAMES = {
    "item": "board game",
    "items": "board games",
    "release": "publication",
    "people": "the designer and the artist",
}
FIELDS = {
    "recommend": {"list_length": "20", "conversation": "User: {items}"},
    "judge": {"conversation": "User: {items}", "candidates": "1. Go"},
    "describe": {"title": "Go"},
    "describe_unknown": {"title": "Go", "passages": '"we play {it}"'},
}


def test_prompts_are_in_the_words_of_their_domain():
    games = Prompts(ROOT / "prompts", GAMES)
    filled = {name: games.fill(name, **fields) for name, fields in FIELDS.items()}
    assert not any(re.search(r"movie|film|director|actor", text, re.IGNORECASE) for text in filled.values())
    begin = "You recommend board games. Read the conversation and recommend 20 board games"
    assert filled["recommend"].startswith(begin)
    assert "Name real board games by their original publication title and year" in filled["recommend"]
    assert filled["recommend"].endswith("\n\nUser: {items}\n"), "braces of a conversation are no fields"
    assert filled["judge"].startswith("A user is looking for board games.")
    assert "Describe the board game Go for" in filled["describe"]
    assert "People: the designer and the artist\n" in filled["describe"]
    assert filled["describe_unknown"].endswith('Board game: Go\nWritten: "we play {it}"\n')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "judge.txt: .*No such file"),
        (lambda path: path.write_text("{conversation}"), "judge.txt: {candidates} is missing or unknown"),
        (lambda path: path.write_text("{conversation}{candidates}{titel}"), "{titel} is missing or unknown"),
        (lambda path: path.write_bytes(b"\xff"), "judge.txt: 'utf-8' codec can't decode"),
    ],
)
def test_a_prompt_that_cannot_be_filled_is_named(tmp_path, change, message):
    folder = shutil.copytree(ROOT / "prompts", tmp_path / "prompts")
    change(folder / "judge.txt")
    with pytest.raises(InputError, match=message):
        Prompts(folder, MOVIES)


def test_the_labelled_lines_of_a_description_become_one_text():
    answer = "Sure!\n**Genres:** crime, drama\n- Keywords: heist, city\nPeople: UNKNOWN\nPlot: Cops and robbers."
    assert metadata_text(answer) == "crime, drama. heist, city. Cops and robbers"
    assert metadata_text("UNKNOWN") == metadata_text("I do not know it.") == ""


def test_passages_stand_around_the_title():
    texts = ["before " * 100 + "I loved The Matrix Reloaded so much" + " after" * 100, "such heat", "no film at all"]
    texts += [f"the matrix reloaded again {n}" for n in range(10)]
    found = find_passages(["The Matrix Reloaded", "Heat", "The Long Unseen"], texts)
    assert set(found) == {"The Matrix Reloaded"}, "a word means something else, and the last stands nowhere"
    assert len(found["The Matrix Reloaded"]) == PASSAGES
    assert "loved The Matrix" in found["The Matrix Reloaded"][0]
    assert len(found["The Matrix Reloaded"][0]) <= PASSAGE_LENGTH


def test_an_item_is_asked_for_once_and_an_unknown_one_with_what_people_wrote(connect, catalog):
    def reply(asked):
        known = "Primer Movie" not in asked.prompt
        inferred = "time box" in asked.prompt
        text = "Genres: crime" if known else "Genres: sci-fi\nPlot: Time travel." if inferred else "UNKNOWN"
        return sent(completion(text, reported()))

    items = [Item("Heat", 1995), Item("Primer Movie", 2004)]
    written = [_row("that Primer Movie with the time box was confusing")]
    with ChatServer(reply) as server:
        teacher = LLMTeacher(connect(server), PROMPTS, catalog, written)
        texts = teacher.describe(items)
        assert texts == ["Heat (1995). crime", "Primer Movie (2004). sci-fi. Time travel"]
        assert len(server.asked) == 3
        again = teacher.describe([*items, Item("Up", 2009)])
        assert again[:2] == texts and len(server.asked) == 4, "of a later catalog only the new item is asked"


def _row(words):
    return {"messages": [{"role": "user", "content": words}], "seen_titles": []}


def test_the_llm_teacher_asks_for_lists_and_keeps_their_order(catalog, connect):
    def reply(asked):
        return sent(completion("Heat (1995)" if "a heist" in asked.prompt else "Up (2009)", reported()))

    with ChatServer(reply) as server:
        teacher = LLMTeacher(connect(server), PROMPTS, catalog)
        assert teacher.recommend([_row("a heist"), _row("{braces} and an old man")], 20) == ["Heat (1995)", "Up (2009)"]
        assert all("recommend 20 movies" in prompt for prompt in server.prompts)
        assert any("User: {braces} and an old man" in prompt for prompt in server.prompts)
        assert teacher.usage()["recommend"]["calls"] == teacher.usage()["total"]["calls"] == 2


def test_the_llm_judge_rates_in_batches_and_leaves_what_it_did_not_rate(catalog, connect, monkeypatch):
    monkeypatch.setattr(llm, "CANDIDATES_PER_CALL", 2)

    def reply(asked):
        lines = asked.prompt.split("Candidates:\n")[1].splitlines()
        ratings = [f"{n}: {2 if 'Heat' in line else -1}" for n, line in enumerate(lines, 1) if "Alien" not in line]
        return sent(completion("\n".join(ratings) or "I cannot say.", reported()))

    with ChatServer(reply) as server:
        teacher = LLMTeacher(connect(server), PROMPTS, catalog)
        candidates = np.array([[3, 0, 4], [0, -1, -1]])
        ratings = teacher.judge([_row("a heist"), _row("an old man")], candidates)
        assert len(server.prompts) == 3, "two candidates a call"
    np.testing.assert_array_equal(ratings, [[-1, 2, np.nan], [2, np.nan, np.nan]])


def test_answers_that_may_fail_are_empty_lists_and_missing_ratings(catalog, connect):
    with ChatServer(lambda _: error(422)) as server:
        teacher = LLMTeacher(connect(server, max_failed=1.0), PROMPTS, catalog)
        assert teacher.recommend([_row("a heist")], 20) == [""]
        assert np.isnan(teacher.judge([_row("a heist")], np.array([[0, 1]]))).all()
