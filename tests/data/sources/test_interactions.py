"""A log as conversations: nothing of the future in a prompt, the same whatever the order of rows, and real ratings."""

import contextlib
import datetime
import os
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.cli import main
from convrec.data.conversations import named_titles
from convrec.data.quarantine import Quarantine
from convrec.data.sources import interactions
from convrec.data.sources.interactions import (
    Sizes,
    Templates,
    find_files,
    moments,
    read_interactions,
)
from convrec.pipeline.stages.data import prepare
from convrec.project.config.params import load_params
from convrec.project.config.profiles import apply_profile
from convrec.project.errors import InputError
from tests.small_project import ROOT

DAY, START = 86_400, 1_640_995_200  # 2022-01-01
GENRES = ["party", "card", "war"]


def _write(folder, rows, num_items=30):
    folder.mkdir(exist_ok=True)
    lines = ["user,item,rating,time", *(",".join(map(str, row)) for row in rows)]
    (folder / "ratings.csv").write_text("\n".join(lines) + "\n")
    items = [f"g{n},Game {n % 20},{2000 + n // 20},{GENRES[n % 3]}" for n in range(num_items)]
    (folder / "items.csv").write_text("\n".join(["id,title,year,genres", *items]) + "\n")
    return folder


def _draw_rows(seed, users=15, number=400):
    draw = random.Random(seed)
    rows = []
    for _ in range(number):
        user = f"u{draw.randrange(users)}"
        rows.append((user, f"g{draw.randrange(30)}", draw.randrange(1, 6), START + draw.randrange(300) * DAY))
    return rows


def _read(folder, quarantine=None, **changes):
    settings = {"log": None, "catalog": None, "columns": {}, "domain": ("game", "games")}
    settings |= {"liked": 4.0, "disliked": 2.0, "max_liked": 4, "num_truths": 3, "max_prompts": 10_000}
    settings |= {"prompts_per_user": 5, "split_days": (), "seed": 17}
    return read_interactions(folder, quarantine or Quarantine(), **settings | changes)


def test_a_history_is_told_and_the_next_liked_items_are_the_ground_truth(tmp_path, quarantine):
    rows = [("7", f"g{n}", rating, START + n * DAY) for n, rating in enumerate([5, 1, 4, 3, 5, 4, 2, 5])]
    folder = _write(tmp_path / "log", [*rows, ("7", "g0", 1, START + 50 * DAY), ("7", "x", 5, START)])
    sizes = {"max_liked": 2, "num_truths": 2, "prompts_per_user": 9}
    catalog, frame, *_ = _read(folder, quarantine, **sizes)
    assert [(row["source"], row["row"]) for row in quarantine.rows] == [("items of the log", "x")]
    first, second, third = frame
    games = [f"Game {n} (2000)" for n in range(8)]
    for row, liked, wanted, day in (
        (first, [0, 2], [4, 5], "2022-01-05"),
        (second, [2, 4], [5, 7], "2022-01-06"),
        (third, [4, 5], [7], "2022-01-08"),
    ):
        words = " ".join(message["content"] for message in row["messages"])
        assert f"{games[liked[0]]} and {games[liked[1]]}" in words
        assert row["groundtruth"] == [{"title": f"Game {n}", "year": 2000} for n in wanted]
        assert row["seen_titles"] == [games[n] for n in liked] + row["disliked_titles"]
        assert set(row["disliked_titles"]) <= {games[1]} | ({games[6]} if day == "2022-01-08" else set())
        assert all(title in words for title in row["disliked_titles"])
        assert (row["user_id"], row["date"]) == ("7", day)
    assert [row["conversation_id"] for row in (first, second, third)] == ["7-2", "7-3", "7-4"]
    assert [str(catalog.items[n]) for n in range(8)] == games


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31 - 1))
def test_no_prompt_names_an_item_of_the_future_and_no_truth_one_of_the_past(tmp_path_factory, seed):
    rows = _draw_rows(seed)
    catalog, frame, *_ = _read(_write(tmp_path_factory.mktemp("log"), rows), seed=seed)
    first = defaultdict(dict)
    for user, item, rating, time in sorted(rows, key=lambda row: (row[3], row[2])):
        if rating != 3:
            first[user].setdefault(str(catalog.items[int(item[1:])]), (time, rating))
    for row in frame:
        history, text = first[row["user_id"]], " ".join(message["content"] for message in row["messages"])
        wanted = [f"{item['title']} ({item['year']})" for item in row["groundtruth"]]
        asked = min(history[title][0] for title in wanted)
        assert pd.Timestamp(asked, unit="s").strftime("%Y-%m-%d") == row["date"]
        named = [str(item) for item in catalog.items if str(item) in text]
        assert set(named) == set(row["seen_titles"]) and not set(wanted) & set(named)
        assert all(history[title][0] <= asked for title in named)
        assert {title for title in named if history[title][1] <= 2} == set(row["disliked_titles"])
        liked = [title for title in row["seen_titles"] if title not in row["disliked_titles"]]
        assert 2 <= len(liked) <= 4 and all(history[title][1] >= 4 for title in liked + wanted)
        assert [history[title][0] for title in liked] == sorted(history[title][0] for title in liked)


def _frame(folder, rows):
    return pd.DataFrame(list(_read(_write(folder, rows)).rows))


def test_the_same_log_gives_the_same_rows_whatever_its_order_and_its_other_users(tmp_path):
    rows = _draw_rows(5)
    frame = _frame(tmp_path / "one", rows)
    random.Random(1).shuffle(rows)
    shuffled = _frame(tmp_path / "two", rows)
    pd.testing.assert_frame_equal(frame, shuffled)
    fewer = _frame(tmp_path / "three", [row for row in rows if row[0] != "u3"])
    pd.testing.assert_frame_equal(frame[frame["user_id"] != "u3"].reset_index(drop=True), fewer)
    assert list(_read(tmp_path / "one", seed=18).rows) != frame.to_dict("records")


@given(
    steps=st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=40),
    low=st.integers(1, 4),
    more=st.integers(0, 4),
    disliked=st.integers(0, 3),
    truths=st.integers(1, 6),
    prompts=st.integers(1, 20),
    border=st.none() | st.integers(0, 800),
    seed=st.integers(0, 99),
)
def test_a_moment_names_what_was_liked_last_and_asks_for_what_was_liked_next(
    steps, low, more, disliked, truths, prompts, border, seed
):
    times = np.cumsum([step for step, _ in steps], dtype=np.int64) * DAY if steps else np.zeros(0, np.int64)
    is_liked = np.array([liked for _, liked in steps], bool)
    periods = np.zeros(len(steps), int) if border is None else (times >= border * DAY).astype(int)
    sizes = Sizes(prompts, low, low + more, disliked, truths)
    items = np.arange(len(steps))
    found = list(moments(items, times, is_liked, periods, sizes, np.random.default_rng(seed)))
    likes = [n for n, liked in enumerate(is_liked) if liked]
    assert len(found) == sizes.num_prompts(np.array([len(likes)]))[0] == max(0, min(prompts, len(likes) - low))
    assert len({len(moment.past) for moment in found}) == len(found), "each moment once"
    for moment in found:
        first = moment.truths[0]
        assert moment.past == [n for n in likes if n < first] and moment.asked == times[first]
        assert low <= len(moment.liked) <= low + more and moment.liked == moment.past[-len(moment.liked) :]
        hated = [n for n in range(first) if not is_liked[n]]
        assert len(moment.disliked) <= disliked
        assert moment.disliked == hated[len(hated) - len(moment.disliked) :]
        after = [n for n in likes if n >= first][:truths]
        assert moment.truths == [n for n in after if periods[n] == periods[first]]


def test_an_item_that_is_taken_again_stands_once_in_each_part():
    items = np.array([1, 2, 1, 3, 4, 4, 2, 1, 5, 2])
    is_liked = np.array([1, 1, 1, 0, 1, 0, 1, 1, 0, 1], bool)
    sizes = Sizes(min_liked=2, max_liked=2, max_disliked=1, num_truths=3, prompts_per_user=9)
    rng = np.random.default_rng(0)
    found = {len(m.past): m for m in moments(items, np.arange(10), is_liked, np.zeros(10), sizes, rng)}
    named = {cut: (items[moment.liked].tolist(), items[moment.truths].tolist()) for cut, moment in found.items()}
    expected = [([1, 2], [1, 4, 2]), ([2, 1], [4, 2, 1]), ([1, 4], [2, 1]), ([4, 2], [1, 2]), ([2, 1], [2])]
    assert named == dict(enumerate(expected, start=2))
    assert {tuple(items[moment.disliked]) for moment in found.values()} <= {(), (3,), (5,)}, "4 was liked before"
    assert [m for m in moments(items[:3] * 0, np.arange(3), is_liked[:3], np.zeros(3), sizes, rng)] == []


def test_every_template_is_used_and_what_is_not_known_leaves_its_brackets_out():
    templates = Templates("game", "games")
    for disliked, genres in (([], []), (["Go"], ["party"]), (["{B} [x]", "Risk"], ["party", "card"])):
        texts = set()
        for seed in range(400):
            messages = templates.write(["Chess", "Hive"], disliked, genres, np.random.default_rng(seed))
            text = " / ".join(message["content"] for message in messages)
            texts.add(text)
            assert messages[-1]["role"] == "user" and "Chess and Hive" in text
            assert all(item in text for item in disliked)
            text = text.replace("{B} [x]", "B")
            assert not any(wrong in text for wrong in ("[", "]", "{", "}", "  ", " ,", " .", "..", "movie", "User:"))
        assert len(texts) >= (14 if not disliked else 20)


def test_blank_lines_between_templates_may_have_spaces(tmp_path, monkeypatch):
    file = tmp_path / "histories.txt"
    monkeypatch.setattr(interactions, "TEMPLATES", file)
    file.write_text("# A comment.\n\n \n\nUser: A {liked}\n\n\n \t\n\nUser: A {liked}\nAssistant: x\nUser: y\n \n")
    templates = Templates("game", "games")
    texts = {templates.write(["Chess"], [], [], np.random.default_rng(n))[0]["content"] for n in range(40)}
    assert texts == {"A Chess"}


@pytest.mark.parametrize("wrong", ["{likd}", "[Not {dislikd}.]", "{liked", "liked}", "{}", "{liked.x}"])
def test_a_template_with_a_wrong_word_or_brace_is_told(tmp_path, monkeypatch, wrong):
    file = tmp_path / "histories.txt"
    monkeypatch.setattr(interactions, "TEMPLATES", file)
    file.write_text(f"User: {{liked}}\n\nUser: more like {{liked}} {wrong}\n")
    with pytest.raises(InputError, match=f"{file}: 'User: more like {{liked}} .*' is no template .*; correct it"):
        Templates("game", "games")


@pytest.mark.parametrize("hour", [0, 12])
def test_a_ground_truth_stays_within_the_days_of_its_split(tmp_path, hour):
    """A user who likes one game a day: no window of validation reaches into the test, or the other way round."""
    rows = [(f"u{user}", f"g{n}", 5, START + n * DAY + hour * 3600) for user in range(20) for n in range(30)]
    folder, starts = _write(tmp_path / "log", rows), ("2022-01-08", "2022-01-15", "2022-01-20", "2022-01-22")
    frame = _read(folder, split_days=[*map(datetime.date.fromisoformat, starts)], prompts_per_user=30).rows
    sizes = defaultdict(set)
    for row in frame:
        numbers = [int(item["title"].split()[1]) + 20 * (item["year"] - 2000) for item in row["groundtruth"]]
        days = [f"2022-01-{number + 1:02d}" for number in numbers]
        assert days[0] == row["date"] and len({sum(start <= day for start in starts) for day in days}) == 1
        sizes[row["date"]].add(len(numbers))
    before = {"2022-01-07": {1}, "2022-01-06": {2}, "2022-01-05": {3}, "2022-01-14": {1}, "2022-01-08": {3}}
    assert {day: sizes[day] for day in before} == before


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["u.data", "u.item", "ratings.csv"], ("u.data", "u.item")),
        (["ratings.dat", "movies.dat", "users.dat"], ("ratings.dat", "movies.dat")),
        (["ratings.csv", "movies.csv", "tags.csv"], ("ratings.csv", "movies.csv")),
        (["Games.jsonl", "meta_Games.jsonl"], ("Games.jsonl", "meta_Games.jsonl")),
    ],
)
def test_files_of_known_names_are_found(tmp_path, files, found):
    for name in files:
        (tmp_path / name).touch()
    assert find_files(tmp_path, None, None) == (tmp_path / found[0], tmp_path / found[1])
    assert find_files(tmp_path, files[-1], files[0]) == (tmp_path / files[-1], tmp_path / files[0])
    with pytest.raises(InputError, match=r"no log absent.csv with items of a known name there .*data.interactions.log"):
        find_files(tmp_path, "absent.csv", None)


def test_ids_that_do_not_meet_are_told(tmp_path):
    folder = _write(tmp_path / "log", [("a", f"other{n}", 5, START) for n in range(9)])
    with pytest.raises(InputError, match="no user has liked enough items of .*are their ids the same"):
        _read(folder)


@pytest.fixture
def project(here):
    for name in ("profiles", "dvc.yaml"):
        (here / name).symlink_to(ROOT / name)
    return here


def test_the_stage_splits_by_user_or_by_period(project):
    _write(project / "log", _draw_rows(3, users=60, number=3000))
    common = ["data.path=log", "data.checks.leaks=keep", "common.domain.item=game", "common.domain.items=games"]
    apply_profile("movielens-100k", common)
    _, splits, _ = prepare(load_params(), Quarantine())
    users = {name: set(rows["user_id"]) for name, rows in splits.items()}
    assert sum(map(len, users.values())) == len(set.union(*users.values())) == 60
    assert 2 <= len(users["test"]) <= 12 and 2 <= len(users["validation"]) <= 12, "about 10 % each"
    apply_profile("movielens-100k", [*common, "data.validation_period=2022-08", "data.test_period=2022-09"])
    _, splits, _ = prepare(load_params(), Quarantine())
    assert splits["train"]["date"].max() < "2022-08" <= splits["validation"]["date"].min()
    assert splits["validation"]["date"].max() < "2022-09" <= splits["test"]["date"].min()


def test_what_was_taken_before_can_be_taken_and_counted_again(project):
    """Everybody takes the same few games again and again: if it is allowed, only what was disliked counts as seen."""
    rows = [(f"u{user}", f"g{(user + n) % 4}", 5, START + n * DAY) for user in range(60) for n in range(12)]
    rows += [(f"u{user}", "g9", 1, START) for user in range(60)]
    _write(project / "log", rows, num_items=10)
    settings = ["data.path=log", "data.checks.leaks=keep"]
    settings += ["common.list_length=4", "common.cutoffs=[4]"]
    sizes = {}
    for again in (True, False):
        apply_profile("movielens-100k", [*settings, f"common.recommend_seen={again}"])
        _, splits, problems = prepare(load_params(), Quarantine())
        sizes[again], test = len(splits["train"]), list(splits["test"])
        assert problems["seen_truth"] == 0
        named = [set(named_titles(row)) - set(row["disliked_titles"]) for row in test]
        written = [{f"{item['title']} ({item['year']})" for item in row["groundtruth"]} for row in test]
        assert any(truth & seen for truth, seen in zip(written, named, strict=True)) == again
        assert all(set(row["seen_titles"]) == set(row["disliked_titles"]) for row in test) == again
    assert sizes[True] > 4 * sizes[False]


def test_movielens_100k(project):
    """The profile as it is shipped: sizes, and that what similar people liked tells what is liked next."""
    folder = Path(os.environ.get("CONVREC_TEST_DATA", "no such folder")) / "movielens_100k"
    if not folder.is_dir():
        pytest.skip("MovieLens 100k is needed: set CONVREC_TEST_DATA to the folder above `movielens_100k`")
    apply_profile("movielens-100k", [f"data.path={folder.resolve()}"])
    with contextlib.chdir(project):
        main(["run", "data"])
    splits = {name: pd.read_parquet(project / f"data/processed/{name}.parquet") for name in ("train", "test")}
    users = {name: set(rows["user_id"]) for name, rows in splits.items()}
    assert not users["train"] & users["test"] and 70 < len(users["test"]) < 115
    assert 9_800 < len(splits["train"]) < 10_000 and 900 < len(splits["test"]) < 1_400
    assert splits["train"]["groundtruth"].map(len).eq(5).mean() > 0.8
    assert 0.5 < splits["train"]["disliked_titles"].map(len).gt(0).mean() < 0.65
    assert "Se7en" in pd.read_parquet(project / "data/processed/catalog.parquet")["aliases"].explode().tolist()
