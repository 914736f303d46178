import json

import pandas as pd
import pytest

from convrec.data.conversations import split_by_person
from convrec.data.quarantine import Quarantine
from convrec.data.sources.redial import read_redial
from convrec.project.errors import InputError

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


def _folder(tmp_path, dialogues):
    (tmp_path / "valid_data.jsonl").write_text("".join(json.dumps(d) + "\n" for d in dialogues), encoding="utf-8")
    (tmp_path / "catalog.jsonl").write_text("".join(json.dumps(c) + "\n" for c in CATALOG), encoding="utf-8")
    return tmp_path


def test_each_recommender_turn_with_a_liked_suggestion_is_a_row(tmp_path, quarantine):
    catalog, rows, *_ = read_redial(_folder(tmp_path, [_dialogue()]), quarantine)
    assert [str(item) for item in catalog.items] == ["Heat (1995)", "Up (2009)", "Dune (2021)", "Nameless"]
    row, later = rows
    assert row["messages"] == [{"role": "user", "content": "i loved Heat (1995)"}]
    assert row["groundtruth"] == [{"title": "Up", "year": 2009}]
    assert row["seen_titles"] == ["Heat"]
    assert later["groundtruth"] == [{"title": "Lost", "year": 2001}], "though the catalog does not hold it"
    assert later["seen_titles"] == ["Heat", "Up", "Dune"]
    assert later["messages"][-1] == {"role": "assistant", "content": "try Up (2009) or Dune (2021)"}
    assert not quarantine.rows


@pytest.mark.parametrize(
    ("own", "disliked"),
    [
        ({}, ["Dune"]),
        ({"12": {**FORM, "liked": 2}, "10": {**FORM, "liked": 0}}, ["Heat"]),
        ({"11": {"liked": 0}, "98": {"liked": 0, "suggested": "?"}}, ["Up", "Dune"]),
    ],
)
def test_what_the_seeker_disliked_is_in_their_own_form_or_else_in_the_other(tmp_path, own, disliked):
    rows = read_redial(_folder(tmp_path, [_dialogue(initiatorQuestions=own)]), Quarantine()).rows
    assert rows["disliked_titles"].tolist() == [[title for title in disliked if title == "Heat"], disliked]
    assert rows["user_id"].tolist() == [str(SEEKER)] * 2


def test_empty_forms_are_lists_in_the_official_files(tmp_path):
    folder = _folder(tmp_path, [_dialogue(), _dialogue(respondentQuestions=[], movieMentions=[])])
    assert len(read_redial(folder, Quarantine()).rows) == 2


def test_recommended_films_are_all_that_a_message_of_the_recommender_names_anew(tmp_path, quarantine):
    dialogue = _dialogue(
        messages=[
            {"senderWorkerId": RECOMMENDER, "text": "hi! @12 ?"},
            {"senderWorkerId": RECOMMENDER, "text": "or @11, or @12"},
            {"senderWorkerId": SEEKER, "text": "no, like @10"},
            {"senderWorkerId": RECOMMENDER, "text": "@10 is great, and @99, and @77"},
        ]
    )
    rows = read_redial(_folder(tmp_path, [dialogue]), quarantine, ground_truth="recommended").rows
    assert [[truth["title"] for truth in own] for own in rows["groundtruth"]] == [["Dune"], ["Up"], ["Lost"]]
    assert rows["messages"][0] == [], "nobody has said anything yet"
    assert rows["messages"][1] == [{"role": "assistant", "content": "hi! Dune (2021) ?"}]
    assert rows["disliked_titles"].tolist() == [[], [], []], "forms are filled in after the dialogue"
    assert not quarantine.rows


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"train": 20}, {"train": 16, "validation": 2, "test": 2}),
        ({"train": 20, "test": 3}, {"train": 18, "validation": 2, "test": 3}),
        ({"train": 20, "valid": 4, "test": 3}, {"train": 20, "validation": 4, "test": 3}),
    ],
)
def test_the_files_are_the_splits_and_the_end_of_training_those_without_a_file(tmp_path, quarantine, files, expected):
    folder = _folder(tmp_path, [])
    (folder / "valid_data.jsonl").unlink()
    for name, number in files.items():
        lines = (json.dumps(_dialogue(conversationId=f" {name}-{place}\u200b")) for place in range(number))
        (folder / f"{name}_data.jsonl").write_text("\n".join(lines))
    rows = pd.DataFrame(list(read_redial(folder, quarantine, own_splits=True).rows))
    order = rows.groupby("split", sort=False)["conversation_id"].unique()
    assert {name: len(ids) for name, ids in order.items()} == expected
    if files == {"train": 20}:
        assert [*order["validation"], *order["test"]] == ["train-16", "train-17", "train-18", "train-19"]


def test_own_splits_need_a_training_file(tmp_path):
    with pytest.raises(InputError, match=r"own_splits = true: no train_data.jsonl"):
        read_redial(_folder(tmp_path, [_dialogue()]), Quarantine(), own_splits=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "valid_data.jsonl").unlink(), r"no \*_data.jsonl"),
        (lambda f: (f / "valid_data.jsonl").write_text('{"a": 1}\n{"b'), "line 2: not JSON"),
        (lambda f: (f / "valid_data.jsonl").write_text("{}\n"), "no dialogue holds a suggestion"),
        (lambda f: (f / "catalog.jsonl").write_text('{"name": "Up (2009)"}\n'), "row 1: field 'movie_id' is missing"),
    ],
)
def test_malformed_files(tmp_path, change, message):
    folder = _folder(tmp_path, [_dialogue()])
    change(folder)
    with pytest.raises(InputError, match=message):
        read_redial(folder, Quarantine())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"messages": [{"senderWorkerId": SEEKER, "text": 5}]}, "messages: Input should be a valid string"),
        ({"movieMentions": ["Heat"]}, "movieMentions: Input should be a valid dictionary"),
        ({"respondentQuestions": {"11": {**FORM, "liked": "1"}}}, "respondentQuestions: Input should be 0, 1 or 2"),
        ({"messages": 5}, "messages: Input should be a valid list"),
    ],
)
def test_a_dialogue_of_another_form_is_kept_aside_with_its_reason(tmp_path, change, reason, quarantine):
    dialogue = _dialogue()
    dialogue["messages"][1:1] = [{"senderWorkerId": 2, "text": " \n"}, {"senderWorkerId": SEEKER, "text": ""}]
    rows = read_redial(_folder(tmp_path, [_dialogue(**change), dialogue]), quarantine).rows
    assert rows["messages"][0] == [{"role": "user", "content": "i loved Heat (1995)"}], "blank messages are left out"
    assert [(row["row"], row["reason"]) for row in quarantine.rows] == [("valid_data.jsonl:1", reason)]
    quarantine.write(tmp_path / "quarantine.parquet")


def test_the_real_files(redial, quarantine):
    catalog, rows, *_ = read_redial(redial, quarantine)
    assert len(catalog) > 6_500 and sum(item.year is None for item in catalog.items) > 300
    truths = sum(len(truth) for truth in rows["groundtruth"])
    assert 2_000 < truths <= 2_729, "at most the 2,729 suggestions that seekers liked"
    outside = [t for truth in rows["groundtruth"] for t in truth if catalog.find(t["title"], t["year"]) is None]
    assert len(outside) < 0.02 * truths
    assert all(message["content"].count("@") < 3 for messages in rows["messages"] for message in messages)
    splits = split_by_person(rows, 0.1, seed=17)
    ids = {name: set(split["user_id"]) for name, split in splits.items()}
    assert not ids["train"] & ids["test"] and not ids["train"] & ids["validation"]
    assert 0.04 < len(ids["test"]) / sum(map(len, ids.values())) < 0.16
