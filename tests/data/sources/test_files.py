"""One's own files: every form that is read, damaged files, and that no row is ever lost in silence."""

import datetime
import json
import shutil

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.data.quarantine import Quarantine
from convrec.data.rows import BAD_DATE
from convrec.data.schemas import CONVERSATION_TYPES
from convrec.data.sources.files import read_files
from convrec.project.errors import InputError

ASK = [{"role": "user", "content": "A game for two, please. Früher: Go."}]
PARQUET = "conversations-2.parquet"
GOOD = {"messages": ASK, "groundtruth": [{"title": "Hive", "year": None}]}


def _folder(folder, **files):
    """Write a folder of files by name, `__` for the dot, with a catalog of games without years."""
    folder.mkdir(exist_ok=True)
    (folder / "catalog.csv").write_text("title\nHive\nGo\nChess\n", encoding="utf-8")
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def _lines(*rows, end="\n"):
    return "".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + end for row in rows)


def _read(folder, quarantine=None):
    return pd.DataFrame(list(read_files(folder, quarantine or Quarantine(), catalog="catalog.csv").rows))


def test_several_files_are_read_in_the_order_of_their_names(tmp_path):
    rows = [GOOD | {"conversation_id": number} for number in range(3)]
    marked = "\ufeff\r\n" + _lines(rows[1], end="\r\n") + "  \n"
    folder = _folder(tmp_path, conversations__jsonl=_lines(rows[2]), **{"conversations-01__JSONL": marked})
    pd.DataFrame([rows[0]]).to_parquet(folder / "conversations-00.parquet")
    (folder / "other.jsonl").write_text("no JSON")
    assert _read(folder)["conversation_id"].tolist() == ["0", "1", "2"]


def test_ids_that_begin_anew_in_each_file_are_refused(tmp_path):
    other = GOOD | {"messages": [{"role": "user", "content": "A party game"}]}
    longer = GOOD | {"messages": [*ASK, {"role": "assistant", "content": "Go?"}, ASK[0]]}
    first = _lines(GOOD | {"conversation_id": 1}, other | {"conversation_id": 2}, other | {"conversation_id": 1})
    second = _lines(longer | {"conversation_id": 1})
    folder = _folder(tmp_path, conversations_1__jsonl=first, conversations_2__jsonl=second)
    assert _read(folder)["conversation_id"].tolist() == ["1", "2", "1", "1"], "a conversation can go on in another file"
    _folder(tmp_path, conversations_2__jsonl=_lines(other, other | {"conversation_id": 1}))
    message = r"_2.jsonl: conversation_id '1' is that of another .* in conversations_1.jsonl, .* as 'conversations_2-1'"
    with pytest.raises(InputError, match=message):
        _read(folder)


def test_json_lines_and_parquet_of_the_same_rows_are_equal(tmp_path):
    rows = [
        {**GOOD, "conversation_id": "a", "date": "2024-03-05", "seen_titles": ["Chess (1475)", "Go"]}
        | {"user_id": "7", "disliked_titles": ["Go", "Hive"]},
        {**GOOD, "conversation_id": None, "date": None, "seen_titles": None},
        {**GOOD, "conversation_id": "b", "groundtruth": [{"title": "Go (2000)", "year": 2000}], "seen_titles": []},
    ]
    one = _folder(tmp_path / "one", conversations__jsonl=_lines(*rows))
    other = _folder(tmp_path / "other")
    pd.DataFrame(rows).to_parquet(other / "conversations.parquet")
    third = _folder(tmp_path / "third")
    table = pa.Table.from_pylist(rows, CONVERSATION_TYPES.remove(1))
    pq.write_table(table, third / "conversations.parquet", row_group_size=1)
    frame = _read(one)
    pd.testing.assert_frame_equal(frame, _read(other))
    pd.testing.assert_frame_equal(frame, _read(third))
    assert frame["seen_titles"].tolist() == [["Chess", "Go", "Hive"], [], []]
    assert frame["user_id"].tolist() == ["7", "", ""] and frame["disliked_titles"].tolist() == [["Go", "Hive"], [], []]


@pytest.mark.parametrize(
    ("type_", "hour"),
    [(pa.timestamp("ns"), 23), (pa.timestamp("us", "UTC"), 23), (pa.timestamp("us", "America/New_York"), 1)],
)
def test_dates_of_parquet_are_days_in_utc(tmp_path, type_, hour):
    folder = _folder(tmp_path)
    time = datetime.datetime(2024, 3, 5, hour, tzinfo=type_.tz and datetime.UTC)
    table = pa.Table.from_pylist([GOOD]).append_column("date", pa.array([time], type_))
    pq.write_table(table, folder / "conversations.parquet")
    assert _read(folder)["date"].tolist() == ["2024-03-05"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (_lines(GOOD).encode("latin-1"), "not UTF-8"),
        (b"\0" * 50, "not JSON"),
        ('{"messages": ' + "[" * 100_000, "not JSON"),
        ('{"date": ' + "9" * 5000 + "}", "not JSON"),
        (_lines(GOOD)[:40], "not JSON"),
        (_lines(GOOD).strip() + _lines(GOOD), "not JSON"),
        ("[]", "no JSON object"),
        ("{}", "messages are no list of {role, content}"),
        (json.dumps(GOOD).replace("Go.", "\\ud800"), "NUL or half a character"),
        (_lines(GOOD | {"date": float("nan"), "groundtruth": [float("nan")]}), "no ground truth"),
        (_lines(GOOD | {"date": float("inf")}), BAD_DATE),
    ],
)
def test_a_damaged_line_is_kept_aside_and_the_next_is_read(tmp_path, line, reason, quarantine):
    line = line.encode() if isinstance(line, str) else line
    content = _lines(GOOD).encode() + line.rstrip(b"\n") + b"\n" + _lines(GOOD, end="").encode()
    assert len(_read(_folder(tmp_path, conversations__jsonl=content), quarantine)) == 2
    assert quarantine.num_read["conversations"] == 3
    aside = [row for row in quarantine.rows if row["source"] == "conversations"]
    assert [(row["row"], row["reason"]) for row in aside] == [("conversations.jsonl:2", reason)]
    quarantine.write(tmp_path / "quarantine.parquet")
    assert len(pd.read_parquet(tmp_path / "quarantine.parquet")) == len(quarantine.rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "conversations.jsonl").unlink(), r"no conversations\*.jsonl or .parquet there"),
        (lambda f: (f / "conversations.jsonl").write_text("\n \r\n"), r"none of its rows can be used \(there is none"),
        (lambda f: (f / "conversations-2.jsonl").mkdir(), "conversations-2.jsonl: not readable"),
        (lambda f: (f / PARQUET).write_bytes(b"PAR1" * 9), f"{PARQUET}: not a readable Parquet"),
        (
            lambda f: (f / "catalog.csv").rename(f / "c.jsonl"),
            r"csv: no such catalog file \(found c.jsonl, conv.*set data.c",
        ),
        (shutil.rmtree, r"no conversations\*.jsonl or .parquet there"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, change, message):
    folder = _folder(tmp_path, conversations__jsonl=_lines(GOOD))
    change(folder)
    with pytest.raises(InputError, match=message):
        _read(folder)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("messages", pa.array(["user: hello"]), "messages are no list of {role, content}: 1"),
        ("messages", pa.array([[("user", "x")]], pa.map_(pa.string(), pa.string())), "messages are no list"),
        ("messages", pa.array([[{"role": "user", "content": b"x"}]]), "a message's content is no text: 1"),
        ("groundtruth", pa.array([[17, 18]]), "groundtruth: no item: neither text, nor pair, nor {title, year}: 2"),
        ("date", pa.array([b"2024-03-05"]), f"{BAD_DATE}: 1"),
    ],
)
def test_parquet_columns_of_wrong_types_are_told(tmp_path, column, values, message):
    folder = _folder(tmp_path)
    table = pa.Table.from_pylist([GOOD])
    if column in table.column_names:
        table = table.drop_columns(column)
    pq.write_table(table.append_column(column, values), folder / "conversations.parquet")
    with pytest.raises(InputError) as caught:
        _read(folder)
    assert message in str(caught.value)
