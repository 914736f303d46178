"""Logs in every layout that is read, what of their rows is used, and which users are drawn."""

import datetime
import json
import random

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.data.quarantine import Quarantine
from convrec.data.sources.interaction_log import MAX_UNUSABLE, read_log
from convrec.data.times import NO_TIME
from convrec.project.errors import InputError

NO_COLUMNS = dict.fromkeys(("user", "item", "value", "time"))
RATINGS = (4.0, 2.0)
START = 874_724_710
ROWS = [("7", "10", 5, START + 9), ("7", "11", 1, START), ("8", "10", 4, START), ("8", "12", 3, START + 5)]
READ = [("7", "10", True, START + 9), ("7", "11", False, START), ("8", "10", True, START)]


def _read(path, columns=NO_COLUMNS, feedback=RATINGS, quarantine=None):
    columns, quarantine = NO_COLUMNS | columns, quarantine or Quarantine()
    return sorted(read_log(path, columns, *feedback, lambda likes: likes, 1000, 17, quarantine).rows())


def _csv(header, times=str, separator=","):
    lines = [separator.join([user, item, str(value), times(time)]) for user, item, value, time in ROWS]
    return "\n".join([header, *lines] if header else lines) + "\n"


def _in_new_york(time):
    return datetime.datetime.fromtimestamp(time, datetime.timezone(datetime.timedelta(hours=-5))).isoformat()


def _reviews():
    rows = [
        {"rating": float(value), "title": "x", "images": [], "asin": "B0", "parent_asin": item}
        | {"user_id": user, "timestamp": time * 1000, "verified_purchase": True}
        for user, item, value, time in ROWS
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ratings.csv", _csv("userId,movieId,rating,timestamp")),
        ("ratings.csv", _csv("user, item, rating, time", lambda time: f' "{time}"')),
        ("ratings.csv", _csv("\ufeffuserId,movieId,rating,timestamp").replace("\n", "\r\n")),
        ("ratings.csv", _csv("user_id,item_id,rating,time", _in_new_york)),
        ("ratings.csv", _csv("user_id,item_id,rating,time").replace("\n", "\n\ufeff", 4)),
        ("u.data", _csv("", separator="\t").replace("\n8", "\n\ufeff8", 1)),
        ("ratings.dat", _csv("", separator="::")),
        ("Games.jsonl", _reviews()),
    ],
)
def test_known_layouts_are_read_as_they_are(tmp_path, name, text, quarantine):
    (tmp_path / name).write_bytes(text.encode())
    assert _read(tmp_path / name, quarantine=quarantine) == READ
    assert not quarantine.rows and quarantine.num_read["interactions"] == 4


KINDS = [pl.Int64, pl.Int32, pl.Float64, pl.Decimal(38, 0), pl.Decimal(12, 2), pl.String]


@pytest.mark.parametrize("kind", [*KINDS, pl.Datetime("ms"), pl.Datetime("ns", "EST")])
def test_parquet_of_any_types_is_read(tmp_path, kind):
    frame = pl.DataFrame(ROWS, ["user", "item", "event", "date"], orient="row")
    if isinstance(kind, pl.Datetime):
        date = pl.from_epoch("date").cast(pl.Datetime(kind.time_unit)).dt.replace_time_zone("UTC")
        frame = frame.with_columns(date.dt.convert_time_zone(kind.time_zone or "UTC"))
    else:
        frame = frame.with_columns(pl.col("user", "item", "date").cast(kind))
    frame.write_parquet(tmp_path / "log.parquet")
    assert _read(tmp_path / "log.parquet") == READ


@pytest.mark.parametrize(("name", "kind", "first"), [("l.parquet", pl.Float32, 2**24), ("l.jsonl", pl.Float64, 2**53)])
def test_ids_beyond_the_integers_of_a_float_are_refused(tmp_path, name, kind, first):
    frame = pl.DataFrame({"user": ["a", "a"], "asin": [1.0 - first, None], "time": [START, START]})
    frame = frame.with_columns(pl.col("asin").cast(kind))
    write = pl.DataFrame.write_parquet if name == "l.parquet" else pl.DataFrame.write_ndjson
    write(frame, tmp_path / name)
    assert _read(tmp_path / name) == [("a", str(1 - first), True, START)]
    write(frame.with_columns(asin=-pl.col("asin") + 1), tmp_path / name)
    with pytest.raises(
        InputError, match=f"{name}: column 'asin' of type {kind.__name__} holds the id {first}, .* as int"
    ):
        _read(tmp_path / name)


def test_columns_of_other_names_are_given(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(_csv("who,what,stars,when"))
    columns = {"user": "who", "item": "what", "value": "stars", "time": "when"}
    assert _read(path, columns) == READ
    for field in ("user", "item", "time"):
        with pytest.raises(InputError, match=f"log.csv: no column '{field}'.*data.interactions.columns.{field}"):
            _read(path, columns | {field: None})
        with pytest.raises(InputError, match="log.csv: no column 'absent'"):
            _read(path, columns | {field: "absent"})


def test_events_and_logs_without_any(tmp_path):
    path = tmp_path / "log.csv"
    rows = "a,1,view,2020-01-01\na,1,buy,2020-01-02\na,2,return,2020-01-03\na,3,,2020-01-04\n"
    path.write_text(f"user,item,event,time\n{rows}")
    first = int(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC).timestamp())
    day = 86_400
    bought, returned = ("a", "1", True, first + day), ("a", "2", False, first + 2 * day)
    assert _read(path, feedback=(["buy", "like"], ["return"])) == [bought, returned]
    assert _read(path, feedback=(["buy"], None)) == [bought]
    path.write_text("user,item,time\na,1,2020-01-02\na,4,2020-01-03\n")
    assert _read(path, feedback=RATINGS) == [bought, ("a", "4", True, first + 2 * day)]


def test_rows_that_cannot_be_used_are_kept_aside(tmp_path, quarantine):
    path = tmp_path / "log.csv"
    bad = [",1,5,874724710", "a,,5,874724710", "a,1,nan,874724710", "a,1,five,874724710", "a,1,,874724710"]
    bad += ["a,1,5,", "a,1,5,soon", "a,1,5,5", "a,1,5,1e300"]
    bad += ["NULL,1,5,874724710", r"\N,1,5,874724710", "a,NaN,5,874724710"]
    path.write_text("\n".join(["user,item,rating,time", *bad, "a,1,5,874724710"]) + "\n")
    assert _read(path, quarantine=quarantine) == [("a", "1", True, 874_724_710)]
    assert [(row["row"], row["reason"]) for row in quarantine.rows] == [
        ("log.csv:1", "column 'user' is empty"),
        ("log.csv:2", "column 'item' is empty"),
        *((f"log.csv:{number}", "column 'rating' is no number") for number in (3, 4, 5)),
        *((f"log.csv:{number}", f"column 'time' is {NO_TIME}") for number in (6, 7, 8, 9)),
        *((f"log.csv:{number}", "column 'user' is empty") for number in (10, 11)),
        ("log.csv:12", "column 'item' is empty"),
    ]
    assert quarantine.rows[3]["value"] == "five (user a, item 1)" and quarantine.rows[5]["value"].startswith(" (user a")
    assert quarantine.shares()["interactions"] == 12 / 13
    path.write_text("user,item,rating,time\n" + "a,1,5,soon\n" * (MAX_UNUSABLE + 1))
    with pytest.raises(InputError, match=r"more than 100,000 rows cannot be used \(column 'time' is no time"):
        _read(path)
    path.write_text("user,item,stars,when\na,1,5,14.11.2023\nb,2,5,15.11.2023\nb,2,,16.11.2023\n")
    message = (
        r"none of its rows can be used \(column 'when' is no time .*: 3, such as row log.csv:1: '14.11.2023 \(user a"
    )
    with pytest.raises(InputError, match=message):
        _read(path, {"value": "stars", "time": "when"})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("log.csv", b"", "not a readable log"),
        ("log.csv", b'user,item,time\na,"1,2020-01-01\n', "not a readable log|no user of"),
        ("log.csv", b"user,item,time\na,1,2020-01-01,more\n", "not a readable log"),
        ("log.parquet", b"PAR1", "not a readable Parquet file"),
        ("log.xlsx", b"", "not .xlsx; convert it"),
        ("u.data", b"1\t2\t3\n", "u.data: 3 fields, not user, item, value, time"),
        ("log.csv", b"user,item,rating,time\na,1,3,874724710\n", "no user of 1 has liked enough"),
    ],
)
def test_a_log_that_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        _read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), max_prompts=st.integers(1, 60))
def test_users_are_drawn_until_there_are_enough_prompts_whatever_the_order_of_rows(tmp_path_factory, seed, max_prompts):
    draw = random.Random(seed)
    rows = [
        f"u{draw.randrange(12)},{draw.randrange(9)},{draw.randrange(1, 6)},{START + draw.randrange(99)}"
        for _ in range(80)
    ]
    path = tmp_path_factory.mktemp("log") / "log.csv"
    found = []
    for _ in range(2):
        draw.shuffle(rows)
        path.write_text("\n".join(["user,item,rating,time", *rows]))
        found.append(read_log(path, NO_COLUMNS, *RATINGS, lambda n: np.minimum(n, 4), max_prompts, seed, Quarantine()))
    assert found[0].rows() == found[1].rows() == sorted(found[0].rows(), key=lambda r: (r[0], r[3], r[1], r[2]))
    likes = {user: 0 for user in {row.split(",")[0] for row in rows}}
    for row in rows:
        likes[row.split(",")[0]] += int(row.split(",")[2]) >= 4
    drawn = set(found[0]["user"])
    prompts = {user: min(number, 4) for user, number in likes.items() if number}
    assert drawn <= set(prompts) and sum(prompts[user] for user in drawn) >= min(max_prompts, sum(prompts.values()))
    assert sum(prompts[user] for user in drawn) < max_prompts + 4, "no user more than are needed"
