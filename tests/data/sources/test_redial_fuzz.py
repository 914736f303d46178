"""ReDial's files and Reddit-v2's `DatasetDict` with cells of wrong types and damaged bytes: an error, or rows."""

import json
import pickle
import random
import shutil
import struct

import pytest
from datasets import Dataset, DatasetDict, disable_progress_bars
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.data.quarantine import Quarantine
from convrec.data.rows import ROLES
from convrec.data.sources.reddit import read_reddit
from convrec.data.sources.redial import read_redial
from convrec.project.errors import InputError
from tests.data.sources.test_redial import CATALOG, FORM, SEEKER, _dialogue, _folder

WRONG = [
    None, 5, -1, 0.5, True, "", "x", "a\0b", "\ud800", [], ["x"], [None], [[]], {}, {"x": None}, {"text": 1},
    10**30,
]  # fmt: skip
WRONG += [float("nan"), float("inf"), "@10", "@99999", "\u202e|\n", [{"senderWorkerId": SEEKER}]]


def _places(value, path=()):
    """Every place within a value: the path of keys to it."""
    if path:
        yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield from _places(inner, (*path, key))


def _damage(value, draw: random.Random, wrong=tuple(WRONG)):
    """Put a wrong value in one place of a value, or take that place away; in a copy."""
    value = json.loads(json.dumps(value))
    path = draw.choice(list(_places(value)))
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    if draw.random() < 0.2:
        del holder[path[-1]]
    else:
        holder[path[-1]] = draw.choice(wrong)
    return value


def _check(rows):
    for row in rows.to_dict("records"):
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
        assert row["conversation_id"].strip() and row["prompt_id"]
        assert all(m["role"] in ROLES and m["content"].strip() for m in row["messages"])
        assert any(m["role"] == "user" for m in row["messages"])
        assert row["groundtruth"] and all(truth["title"] for truth in row["groundtruth"])


@settings(max_examples=80)
@given(seed=st.integers(0, 2**32))
def test_dialogues_with_wrong_fields_are_told_or_kept_aside(tmp_path_factory, seed):
    draw = random.Random(seed)
    damaged = [_damage(_dialogue(), draw) if draw.random() < 0.6 else _dialogue() for _ in range(draw.randrange(1, 5))]
    catalog = [_damage(row, draw) if draw.random() < 0.1 else row for row in CATALOG]
    folder, quarantine = _folder(tmp_path_factory.mktemp("redial"), damaged, catalog), Quarantine()
    try:
        rows = read_redial(folder, quarantine).rows
    except InputError as error:
        assert str(folder) in str(error) or "none of its" in str(error)
        return
    _check(rows)
    assert quarantine.num_read["conversations"] == len(damaged)
    aside = {row["row"] for row in quarantine.rows if row["source"] == "conversations"}
    whole = json.dumps(_dialogue())  # as text: True equals 1
    good = [number for number, dialogue in enumerate(damaged, start=1) if json.dumps(dialogue) == whole]
    assert not aside & {f"valid_data.jsonl:{number}" for number in good}
    if catalog == CATALOG:
        per_dialogue = rows["groundtruth"].map(len).groupby(rows["conversation_id"]).sum()
        assert per_dialogue.get("7", 0) >= 2 * len(good), "every good dialogue gives its two truths"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"messages": [{"senderWorkerId": SEEKER, "text": 5}]}, "messages are no list of {senderWorkerId, text}"),
        ({"movieMentions": ["Heat"]}, "movieMentions is no mapping"),
        ({"respondentQuestions": "yes"}, "respondentQuestions is no mapping"),
        (
            {"respondentQuestions": {"11": {**FORM, "liked": "1"}}},
            "an answer of respondentQuestions lacks suggested or liked as 0, 1 or 2",
        ),
        ({"conversationId": ""}, "no conversationId"),
        ({"conversationId": "\ud800"}, "NUL or half a character"),
    ],
)
def test_a_dialogue_of_another_form_is_kept_aside_with_its_reason(tmp_path, change, reason):
    quarantine = Quarantine()
    rows = read_redial(_folder(tmp_path, [_dialogue(**change), _dialogue()]), quarantine).rows
    assert len(rows) == 2
    assert [(row["row"], row["reason"]) for row in quarantine.rows] == [("valid_data.jsonl:1", reason)]


def test_blank_messages_of_redial_are_left_out(tmp_path):
    dialogue = _dialogue()
    dialogue["messages"][1:1] = [{"senderWorkerId": 2, "text": " \n"}, {"senderWorkerId": SEEKER, "text": ""}]
    rows = read_redial(_folder(tmp_path, [dialogue]), Quarantine()).rows
    _check(rows)
    assert rows["messages"][0] == [{"role": "user", "content": "i loved Heat (1995)"}]


BYTES = [b"", b"\0", b"\xff", b"\n", b"\r", b'"', b"{", b"[" * 3000, b"9" * 5000, b"@", b"\\", b"\xef\xbb\xbf"]


def _damage_bytes(path, draw: random.Random, pieces=tuple(BYTES)):
    content = bytearray(path.read_bytes())
    for _ in range(draw.randrange(1, 4)):
        start = draw.randrange(len(content) + 1)
        content[start : start + draw.choice([0, 0, 1, 1, 1, 8, len(content)])] = draw.choice(pieces)
    path.write_bytes(bytes(content))


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_any_bytes_of_redial_give_an_error_that_names_the_file_or_rows(tmp_path_factory, seed):
    draw = random.Random(seed)
    folder = _folder(tmp_path_factory.mktemp("redial"), [_dialogue(), _dialogue(conversationId=8)])
    _damage_bytes(folder / draw.choice(["valid_data.jsonl", "catalog.jsonl"]), draw)
    try:
        rows = read_redial(folder, Quarantine()).rows
    except InputError as error:
        assert str(folder) in str(error) or "none of its" in str(error)
    else:
        _check(rows)


PROMPT = [{"role": "user", "content": "Recommend 20 movies.\nWhat is like Alien?"}]
ROW = {"prompt": PROMPT, "groundtruth_with_release_year": [["Heat", "1995"]], "seen_titles": ["Alien"]}


def _save(folder, rows=(ROW, ROW), split="train"):
    disable_progress_bars()
    splits = {name: Dataset.from_list([ROW, ROW]) for name in ("train", "validation", "test")}
    splits[split] = rows if isinstance(rows, Dataset) else Dataset.from_list(list(rows))
    DatasetDict(splits).save_to_disk(str(folder))
    (folder / "catalog.pkl").write_bytes(pickle.dumps([("Heat", 1995), ("Up", 2009)]))
    return folder


@pytest.mark.parametrize(
    ("column", "cells", "reason"),
    [
        ("prompt", [None, PROMPT], "messages are no list of {role, content}"),
        ("prompt", [[], PROMPT], "no words of the user"),
        ("groundtruth_with_release_year", [None, [["Heat", "1995"]]], "no ground truth"),
        ("groundtruth_with_release_year", [[None], [["Heat", "1995"]]], "no ground truth"),
    ],
)
def test_null_cells_of_a_dataset_are_kept_aside(tmp_path, column, cells, reason):
    folder, quarantine = _save(tmp_path, [ROW | {column: cell} for cell in cells]), Quarantine()
    source = read_reddit(folder, quarantine, catalog="catalog.pkl")
    assert source.splits.value_counts(sort=False).tolist() == [1, 2, 2]
    aside = [(row["row"], row["reason"]) for row in quarantine.rows if row["source"] == "conversations"]
    assert aside == [("train:1", reason)]
    assert quarantine.num_read["conversations"] == 6


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("prompt", "What is like Alien?"),
        ("prompt", {"role": "user", "content": "x"}),
        ("groundtruth_with_release_year", "Heat (1995)"),
        ("groundtruth_with_release_year", [5]),
        ("seen_titles", "Alien"),
    ],
)
def test_a_column_of_a_dataset_with_another_type_leaves_no_row(tmp_path, column, cell):
    folder, quarantine = _save(tmp_path, [ROW | {column: cell}] * 2), Quarantine()
    with pytest.raises(InputError, match="the train split is empty"):
        read_reddit(folder, quarantine, catalog="catalog.pkl")
    assert sum(row["source"] == "conversations" for row in quarantine.rows) == 2


def _remove(name):
    return lambda folder: (folder / name).unlink()


def _write(name, content):
    return lambda folder: (folder / name).write_text(content)


def _cut(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


ARROW = "train/data-00000-of-00001.arrow"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_remove("dataset_dict.json"), "no readable saved DatasetDict"),
        (_write("dataset_dict.json", '{"splits": []}'), "split 'train' is missing"),
        (_write("dataset_dict.json", '{"splits": ["train", "new"]}'), "no readable saved DatasetDict"),
        (_write("train/dataset_info.json", '{"features": 5}'), "no readable saved DatasetDict"),
        (_remove(ARROW), "no readable saved DatasetDict"),
        (_cut(ARROW, 100), "no readable saved DatasetDict"),
        (lambda folder: shutil.rmtree(folder / "validation"), "no readable saved DatasetDict"),
        (_remove("catalog.pkl"), "no such catalog file"),
    ],
)
def test_a_damaged_dataset_is_told(tmp_path, change, message):
    folder = _save(tmp_path / "data")
    change(folder)
    with pytest.raises(InputError, match=message) as caught:
        read_reddit(folder, Quarantine(), catalog="catalog.pkl")
    assert str(folder) in str(caught.value)


def test_a_dataset_without_splits_is_told(tmp_path):
    Dataset.from_list([ROW]).save_to_disk(str(tmp_path))
    (tmp_path / "catalog.pkl").write_bytes(pickle.dumps([("Heat", 1995)]))
    with pytest.raises(InputError, match="one dataset, not a DatasetDict of train, validation, test"):
        read_reddit(tmp_path, Quarantine(), catalog="catalog.pkl")


def test_offsets_of_a_damaged_arrow_file_are_not_followed(tmp_path):
    folder = _save(tmp_path)
    path = folder / ARROW
    content = path.read_bytes()
    offsets = [struct.pack("<3i", *ends) for ends in ((0, 5, 10), (0, 5, 2**30))]  # of the seen titles
    assert content.count(offsets[0]) == 1
    path.write_bytes(content.replace(*offsets))
    with pytest.raises(InputError, match="no readable saved DatasetDict"):
        read_reddit(folder, Quarantine(), catalog="catalog.pkl")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return _save(tmp_path_factory.mktemp("saved"))


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_any_bytes_of_a_dataset_give_an_error_that_names_the_folder_or_rows(tmp_path_factory, saved, seed):
    draw = random.Random(seed)
    folder = tmp_path_factory.mktemp("dataset") / "data"
    shutil.copytree(saved, folder)
    name = draw.choice([ARROW, ARROW, "train/state.json", "train/dataset_info.json", "dataset_dict.json"])
    content = bytearray((folder / name).read_bytes())
    for _ in range(draw.randrange(1, 4)):
        start = draw.randrange(len(content))
        content[start : start + draw.choice([0, 1, 1, 1, 8])] = draw.choice([b"", b"\0", b"\xff", b"a", b"\x01", b'"'])
    (folder / name).write_bytes(bytes(content))
    quarantine = Quarantine()
    try:
        source = read_reddit(folder, quarantine, catalog="catalog.pkl")
    except InputError as error:
        assert str(folder) in str(error) or "split" in str(error)
        return
    aside = [row for row in quarantine.rows if row["source"] == "conversations"]
    assert len(source.rows) + len(aside) == quarantine.num_read["conversations"]
    for _, rows in source.rows.groupby(source.splits):
        _check(rows)
