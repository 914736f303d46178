import json
import random
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest

from convrec.data.catalog import Catalog
from convrec.data.quarantine import Quarantine
from convrec.data.rows import BAD_DATE, PLACEHOLDER
from convrec.data.schemas import write_conversations
from convrec.data.sources import reddit_movie
from convrec.data.sources.reddit_movie import read_reddit_movie
from convrec.project.errors import InputError
from tests.data.sources.reddit_movie_sample import film_names, sample_turns, turn, write_dump

HEAT, UP, ALIEN, ALIEN_AGAIN, LOST, LATE = "tt0113277", "tt1049413", "tt0078748", "tt00787481", "tt0000009", "tt9999999"
UNKNOWN = "tt1234567"
NAMES = {LATE: "Late (3000)", HEAT: "Heat (1995)", UP: "Up \n (2009)", ALIEN: "Alien (1979)"}
NAMES |= {ALIEN_AGAIN: "ALIEN  (1979)", LOST: "Lost"}
NOVEMBER = int(datetime(2022, 11, 1, tzinfo=UTC).timestamp())


def small_thread() -> list[dict]:
    """A post; two replies to it; to the first an answer, a second recommender's turn, a third's."""
    seeker, helper = {"is_seeker": True}, {"is_seeker": False, "upvotes": 1}
    post = turn("c", "t3_a", NOVEMBER - 10, f'I loved {HEAT}, it\'s a "classic".\nMore?', [], NAMES, **seeker)
    first = turn("c", "t1_b", NOVEMBER - 1, f"Try {UP}_ or {HEAT}, {UP}", [post], NAMES, **helper | {"upvotes": 5})
    other = turn("c", "t1_e", NOVEMBER, f"{ALIEN}!", [post], NAMES, **helper | {"upvotes": 0})
    answer = turn("c", "t1_c", NOVEMBER + 1, f"Seen. And {LOST}?", [post, first], NAMES, **seeker)
    second = turn("c", "t1_d", NOVEMBER + 2, "No idea", [post, first, answer], NAMES, **helper)
    third = turn("c", "t1_f", NOVEMBER + 3, f"{ALIEN_AGAIN} {UP}", [post, first, answer, second], NAMES, **helper)
    last = turn("c", "t1_g", NOVEMBER + 4, f"So {UP}", [post, first, answer, second, third], NAMES, **helper)
    return [post, first, other, answer, second, third, last]


def _read(folder: Path, records: list[dict]) -> tuple[Catalog, list[dict], Counter]:
    write_dump(folder, records, NAMES, copies=0)
    quarantine = Quarantine()
    catalog, rows, *_ = read_reddit_movie(folder, quarantine)
    return catalog, list(rows), Counter((row["source"], row["reason"]) for row in quarantine.rows)


OF_THE_CATALOG = Counter({("catalog", "year is not from 1000 to 2100"): 1, ("catalog", "duplicate item"): 1})


def test_each_turn_that_names_new_films_is_a_row(tmp_path):
    catalog, rows, quarantine = _read(tmp_path, small_thread())
    assert [str(item) for item in catalog.items] == ["Lost", "Alien (1979)", "Heat (1995)", "Up (2009)"]
    assert quarantine == OF_THE_CATALOG
    first, third = rows
    post = {"role": "user", "content": 'I loved Heat (1995), it\'s a "classic".\nMore?'}
    assert first["messages"] == [post]
    assert first["groundtruth"] == [{"title": "Up", "year": 2009}], "once, and without what the context names"
    assert first["seen_titles"] == ["Heat"]
    assert (first["date"], first["conversation_id"]) == ("2022-10-31", "c")
    assert (first["user_id"], first["disliked_titles"]) == ("t2_seeker", [])
    assert third["messages"] == [
        post,
        {"role": "assistant", "content": "Try Up (2009)_ or Heat (1995), Up (2009)"},
        {"role": "user", "content": "Seen. And Lost?"},
        {"role": "assistant", "content": "No idea"},
    ]
    assert third["groundtruth"] == [{"title": "Alien", "year": 1979}], "the item of the catalog, whichever id names it"
    assert third["seen_titles"] == ["Heat", "Up", "Lost"]
    assert third["date"] == "2022-11-01"


def test_the_user_is_the_seeker_who_speaks_first_and_a_dump_may_lack_the_column(tmp_path):
    records = small_thread()
    for record in records:
        record["user_id"] = f" t2_{record['turn_id']} "
    assert [row["user_id"] for row in _read(tmp_path, records)[1]] == ["t2_t3_a"] * 2
    for path in tmp_path.glob("*.csv"):
        pd.read_csv(path).drop(columns="user_id").to_csv(path, index=False)
    assert read_reddit_movie(tmp_path, Quarantine()).rows["user_id"].tolist() == [""] * 2


def test_two_ids_of_one_item_are_the_first_of_them(tmp_path):
    thread = small_thread()[:1]
    text = f"{ALIEN_AGAIN}, {UP} and {ALIEN}"
    thread.append(turn("c", "t1_b", NOVEMBER, text, thread[:1], NAMES, is_seeker=False, upvotes=1))
    (row,) = _read(tmp_path, thread)[1]
    assert [truth["title"] for truth in row["groundtruth"]] == ["Alien", "Up"]


def test_answers_to_one_turn_share_the_prompt(tmp_path, monkeypatch):
    monkeypatch.setattr(reddit_movie, "MIN_UPVOTES", 0)
    _, rows, _ = _read(tmp_path, small_thread())
    assert [row["groundtruth"][0]["title"] for row in rows] == ["Up", "Alien", "Alien"]
    assert rows[0]["prompt_id"] == rows[1]["prompt_id"] != rows[2]["prompt_id"]
    assert rows[1]["messages"] == rows[0]["messages"]
    monkeypatch.setattr(reddit_movie, "MIN_UPVOTES", 6)
    with pytest.raises(InputError, match="at least 6 upvotes"):
        _read(tmp_path, small_thread())


def test_the_order_of_files_and_rows_does_not_matter(tmp_path):
    names = film_names(100)
    records = list(sample_turns(300, names))
    frames = []
    for seed in range(3):
        folder = tmp_path / str(seed)
        write_dump(folder, records, names, copies=0.1 * seed)
        if seed == 2:
            (folder / "train.csv").rename(folder / "zz.csv")
        (folder / "id2name.json").write_text(json.dumps(dict(sorted(names.items(), reverse=seed == 1))))
        random.Random(seed).shuffle(records)
        catalog, rows, *_ = read_reddit_movie(folder, Quarantine())
        write_conversations(rows, folder / "rows.parquet")
        frames.append(((folder / "rows.parquet").read_bytes(), catalog.items))
    assert frames[0] == frames[1] == frames[2]


def test_a_turn_counts_once(tmp_path):
    thread = small_thread()
    other_conversation = thread[1] | {"conv_id": "b"}
    _, rows, _ = _read(tmp_path, [*thread, *thread, other_conversation])
    assert [row["conversation_id"] for row in rows] == ["b", "c"], "the first of the conversations that hold the turn"


@pytest.mark.parametrize(
    ("number", "change", "reason"),
    [
        (1, {"utc_time": NOVEMBER * 10}, ("conversations", BAD_DATE)),
        (1, {"context_turn_ids": "[]"}, ("conversations", "no words of the user")),
        (1, {"context_turn_ids": "['t3_a', 't1_z']"}, ("conversations", "a turn of its context is missing")),
        (1, {"context_turn_ids": "['t1_d']"}, ("conversations", "no words of the user")),
        (1, {"context_turn_ids": "['t3_a'"}, ("turns", "broken literal")),
        (1, {"processed": "['SYSTEM', 'tt1049413"}, ("turns", "broken literal")),
        (1, {"upvotes": ""}, None),
        (1, {"processed": UNKNOWN}, None),
        (1, {"processed": f"{UNKNOWN} {UP}"}, ("groundtruth", "the catalog has no item of this id")),
        (3, {"processed": f"Also {UNKNOWN}"}, ("seen_titles", "the catalog has no item of this id")),
    ],
)
def test_what_cannot_be_used_is_counted(tmp_path, number, change, reason):
    thread = small_thread()[: number + 1] if number == 1 else small_thread()
    extra = turn("d", "t1_y", NOVEMBER, ALIEN, thread[:1], NAMES, is_seeker=False, upvotes=9)
    lone = turn("e", "t1_d", NOVEMBER, "No idea", [], NAMES, is_seeker=False, upvotes=9)
    records = [*thread, extra] + ([lone] if number == 1 else [])
    whole = len(_read(tmp_path / "whole", records)[1])
    records[number] = records[number] | change
    _, rows, quarantine = _read(tmp_path / "changed", records)
    assert quarantine - OF_THE_CATALOG == ({reason: 1} if reason else {})
    assert len(rows) == whole - (number == 1 and "groundtruth" not in (reason or ()))


@pytest.mark.parametrize("text", ["[deleted]", "[removed]", "['USER', ' [ Removed by Reddit ] ']"])
def test_a_deleted_post_is_no_prompt(tmp_path, text):
    thread = small_thread()
    other = turn("d", "t3_z", NOVEMBER, f"More like {HEAT}?", [], NAMES, is_seeker=True)
    answer = turn("d", "t1_y", NOVEMBER, ALIEN, [other], NAMES, is_seeker=False, upvotes=9)
    thread[0] = thread[0] | {"processed": text}
    _, rows, quarantine = _read(tmp_path, [*thread, other, answer])
    assert [row["conversation_id"] for row in rows] == ["d"]
    missing = ("conversations", "a turn of its context is missing")
    assert quarantine - OF_THE_CATALOG == {("turns", PLACEHOLDER): 1, missing: 2}


def _append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def _drop_column(path: Path) -> None:
    pd.read_csv(path).drop(columns="is_seeker").to_csv(path, index=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "no readable JSON object"),
        (lambda f: [p.unlink() for p in f.glob("*.csv")], r"no \*.csv there"),
        (lambda f: (f / "id2name.json").unlink(), "id2name.json: no readable JSON object of IMDb ids"),
        (lambda f: (f / "id2name.json").write_text('["Heat (1995)"]'), "id2name.json: no readable JSON object"),
        (lambda f: (f / "id2name.json").write_bytes(b'{"tt1": "\xe9"}'), "id2name.json: no readable JSON object"),
        (lambda f: _drop_column(f / "train.csv"), "train.csv: not readable as .* with the columns .*is_seeker"),
        (lambda f: (f / "train.csv").write_bytes(b""), "train.csv: not readable as CSV"),
        (lambda f: _append(f / "train.csv", b'c,t1_h,1,u,True,1,1,"open,x,[],[],[]\n'), "close every quote"),
    ],
)
def test_unreadable_files(tmp_path, change, message):
    write_dump(tmp_path, small_thread(), NAMES)
    change(tmp_path)
    with pytest.raises(InputError, match=message):
        read_reddit_movie(tmp_path, Quarantine())
