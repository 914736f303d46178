import json

import pytest

from convrec.data.catalog import LeftOut
from convrec.data.conversations import split_by_conversation
from convrec.data.redial import read_redial
from convrec.errors import InputError

SEEKER, RECOMMENDER = 1, 2
CATALOG = [
    {"movie_id": "10", "name": "Heat  (1995)", "genre": ["crime"], "plot": "Cops.", "director": [], "star": []},
    {"movie_id": "11", "name": "Up (2009)", "genre": [], "plot": "", "director": [], "star": []},
    {"movie_id": "12", "name": "Dune", "genre": [], "plot": "", "director": [], "star": []},
    {"movie_id": "13", "name": "Nameless", "genre": [], "plot": "", "director": [], "star": []},
]
FORM = {"suggested": 1, "seen": 0, "liked": 1}


def _dialogue(**changes) -> dict:
    dialogue = {
        "conversationId": "7",
        "movieMentions": {"10": "Heat (1995)", "11": "Up (2009)", "12": "Dune (2021)", "99": "Lost (2001)"},
        "respondentQuestions": {"11": FORM, "12": {**FORM, "liked": 0}, "99": FORM, "10": {**FORM, "suggested": 0}},
        "initiatorWorkerId": SEEKER,
        "messages": [
            {"senderWorkerId": SEEKER, "text": "i loved @10"},
            {"senderWorkerId": RECOMMENDER, "text": "try @11 or @12"},
            {"senderWorkerId": RECOMMENDER, "text": "or @99, or @11 again"},
        ],
    }
    return dialogue | changes


def _folder(tmp_path, dialogues, catalog=CATALOG):
    (tmp_path / "valid_data.jsonl").write_text("".join(json.dumps(d) + "\n" for d in dialogues), encoding="utf-8")
    (tmp_path / "catalog.jsonl").write_text("".join(json.dumps(c) + "\n" for c in catalog), encoding="utf-8")
    return tmp_path


def test_each_recommender_turn_with_a_liked_suggestion_is_a_row(tmp_path):
    left_out = LeftOut()
    catalog, rows = read_redial(_folder(tmp_path, [_dialogue()]), left_out)
    assert [str(item) for item in catalog.items] == ["Heat (1995)", "Up (2009)", "Dune (2021)"]
    (row,) = rows.to_dict("records")
    assert row["messages"] == [{"role": "user", "content": "i loved Heat (1995)"}]
    assert row["groundtruth"] == [{"title": "Up", "year": 2009}]
    assert row["seen_titles"] == ["Heat"]
    reasons = [(r["source"], r["reason"], r["value"]) for r in left_out.rows]
    assert reasons == [("catalog", "no year", "Nameless"), ("groundtruth", "not in the catalog", "Lost (2001)")]


def test_empty_forms_are_lists_in_the_official_files(tmp_path):
    folder = _folder(tmp_path, [_dialogue(), _dialogue(respondentQuestions=[], movieMentions=[])])
    assert len(read_redial(folder, LeftOut())[1]) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "valid_data.jsonl").unlink(), r"no \*_data.jsonl"),
        (lambda f: (f / "valid_data.jsonl").write_text("{}\n"), "row 1: field 'conversationId' is missing"),
        (lambda f: (f / "valid_data.jsonl").write_text('{"a": 1}\n{"b'), "row 2: not JSON"),
        (lambda f: (f / "catalog.jsonl").write_text('{"name": "Up (2009)"}\n'), "row 1: field 'movie_id' is missing"),
        (lambda f: (f / "catalog.jsonl").unlink(), "no such catalog file"),
    ],
)
def test_malformed_files(tmp_path, change, message):
    folder = _folder(tmp_path, [_dialogue()])
    change(folder)
    with pytest.raises(InputError, match=message):
        read_redial(folder, LeftOut())


@pytest.mark.real_data
def test_the_real_files(redial):
    left_out = LeftOut()
    catalog, rows = read_redial(redial, left_out)
    assert len(catalog) > 6_000
    truths = sum(len(truth) for truth in rows["groundtruth"])
    missing = sum(row["source"] == "groundtruth" for row in left_out.rows)
    assert 2_000 < truths <= 2_729, "at most the 2,729 suggestions that seekers liked"
    assert missing < 0.07 * truths, "mentions that the catalog lacks, or that carry no year there"
    assert all(message["content"].count("@") < 3 for messages in rows["messages"] for message in messages)
    splits = split_by_conversation(rows, rows["conversation_id"], 0.1, 0.1, seed=17)
    ids = {name: set(split["conversation_id"]) for name, split in splits.items()}
    assert not ids["train"] & ids["test"] and not ids["train"] & ids["validation"]
    assert 0.09 < len(ids["test"]) / sum(map(len, ids.values())) < 0.11
