import re
import shutil

import pytest

from convrec.demonstrations.teacher_prompts import Prompts
from convrec.errors import InputError
from tests.demonstrations.chat_server import MOVIES, PROMPTS
from tests.project import ROOT

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
    assert filled["recommend"].startswith(
        "You recommend board games. Read the conversation and recommend 20 board games"
    )
    assert "Name real board games by their original publication title and year" in filled["recommend"]
    assert filled["recommend"].endswith("\n\nUser: {items}\n"), "braces of a conversation are no fields"
    assert filled["judge"].startswith("A user is looking for board games.")
    assert "Describe the board game Go for" in filled["describe"]
    assert "People: the designer and the artist\n" in filled["describe"]
    assert filled["describe_unknown"].endswith('Board game: Go\nWritten: "we play {it}"\n')


def test_the_words_of_movies_are_the_published_prompts():
    recommend = PROMPTS.fill("recommend", **FIELDS["recommend"])
    assert recommend.startswith(
        "You recommend movies. Read the conversation and recommend 20 movies that the user is likely to enjoy and has "
        "not mentioned.\nWrite exactly 20 lines, the best first, each of the form: Title (Year)\nName real movies by "
        "their original release title and year, none of them twice.\n"
    )
    assert PROMPTS.fill("describe", title="Go").startswith("Describe the movie Go for a librarian")
    assert PROMPTS.fill("describe_unknown", title="Go", passages="nothing").endswith("Movie: Go\nWritten: nothing\n")


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(ROOT / "prompts", tmp_path / "prompts")


def test_a_prompt_of_the_workspace_may_hold_json(folder):
    (folder / "judge.txt").write_text('Answer as {"1": 2}.\n{conversation}\n{candidates}', encoding="utf-8")
    text = Prompts(folder, MOVIES).fill("judge", conversation="Hi", candidates="1. Heat")
    assert text == 'Answer as {"1": 2}.\nHi\n1. Heat'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "judge.txt: not readable .*the folder needs recommend.txt, judge.txt"),
        (lambda path: path.write_text("{conversation}"), "judge.txt: {candidates} is missing; the prompt needs it"),
        (lambda path: path.write_text("{conversation}{candidates}{titel}"), "{titel} is unknown; it can have {Item}"),
        (lambda path: path.write_bytes(b"\xff"), "judge.txt: not UTF-8"),
    ],
)
def test_a_prompt_that_cannot_be_filled_is_named(folder, change, message):
    change(folder / "judge.txt")
    with pytest.raises(InputError, match=f"demonstrations.prompts: .*{message}"):
        Prompts(folder, MOVIES)
