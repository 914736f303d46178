import os
import tempfile
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.registry.tracking.journal import About, Journal, left_journals

ABOUT = About("r1", "sft", "http://127.0.0.1:5000", 7)


def _records(journal: Journal, start: int = 0) -> list[dict]:
    return [record for record, _ in journal.records(start)]


def test_records_come_back_in_order_with_their_times(tmp_path):
    journal = Journal.create(tmp_path, ABOUT)
    journal.append("metrics", step=3, metrics={"loss": 0.5})
    journal.append("tags", tags={"a": "b"})
    first, second = _records(journal)
    assert first == {"kind": "metrics", "at": first["at"], "step": 3, "metrics": {"loss": 0.5}}
    assert second["tags"] == {"a": "b"} and second["at"] >= first["at"] > 1_700_000_000_000
    assert [orjson.loads(line).get("kind") for line in journal.path.open("rb")] == [None, "metrics", "tags"]


@pytest.mark.parametrize(("content", "left"), [(None, 1), (b"", 2), (b"\0\0", 2), (b"null", 2)])
def test_sending_goes_on_where_it_was_and_without_a_position_at_the_start(tmp_path, content, left):
    journal = Journal.create(tmp_path, ABOUT)
    for name in ("a", "b"):
        journal.append("tags", tags={name: "1"})
    journal.refused = 1
    journal.mark(next(end for _, end in journal.records(0)))
    journal.release()
    if content is not None:
        journal.path.with_suffix(".sent").write_bytes(content)
    again = Journal.adopt(journal.path)
    assert again.about == ABOUT and again.refused == (content is None)
    assert len(_records(again, again.sent)) == left


@settings(max_examples=40)
@given(st.lists(st.dictionaries(st.text(), st.text()), max_size=5), st.data())
def test_a_journal_cut_anywhere_keeps_its_whole_records(tags, data):
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal.create(Path(folder), ABOUT)
        start = journal.path.stat().st_size
        for each in tags:
            journal.append("tags", tags=each)
        content = journal.path.read_bytes()
        cut = data.draw(st.integers(start, len(content)))
        journal.path.write_bytes(content[:cut])
        assert [record["tags"] for record in _records(journal)] == tags[: content[start:cut].count(b"\n")]
        journal.release()


def test_a_record_that_a_full_disk_cut_damages_no_other(tmp_path, monkeypatch, caplog):
    journal, write = Journal.create(tmp_path, ABOUT), os.write
    journal.append("tags", tags={"n": "1"})
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:20]))
    journal.append("tags", tags={"n": "2"})
    monkeypatch.setattr(os, "write", write)
    journal.append("tags", tags={"n": "3"})
    assert [(record["kind"], record.get("tags")) for record in _records(journal)] == [
        ("tags", {"n": "1"}),
        ("damaged", None),
        ("tags", {"n": "3"}),
    ]
    assert "cannot be written" in caplog.text


def test_an_artifact_is_copied_and_one_that_cannot_be_stops_nothing(tmp_path, caplog):
    journal, source = Journal.create(tmp_path, ABOUT), tmp_path / "table.csv"
    source.write_text("first")
    journal.append_file(source, "tables/table.csv")
    source.write_text("rewritten in place")
    journal.append_file(tmp_path / "nowhere.csv", "nowhere.csv")
    (record,) = _records(journal)
    assert record["path"] == "tables/table.csv" and journal.copy_of(record["file"]).read_text() == "first"
    assert "is not recorded" in caplog.text
    journal.settle()
    assert list(tmp_path.iterdir()) == [source]


def test_one_process_at_a_time_has_a_journal(tmp_path):
    journal = Journal.create(tmp_path, ABOUT)
    assert left_journals(tmp_path) == [journal.path] and Journal.adopt(journal.path) is None
    journal.release()
    adopted = Journal.adopt(journal.path)
    assert Journal.adopt(journal.path) is None
    adopted.refused = 1
    adopted.settle()
    assert left_journals(tmp_path) == [] and (tmp_path / "r1.refused").exists()
    with pytest.raises(FileNotFoundError):
        Journal.adopt(journal.path)


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_journal_that_another_process_sends_between_open_and_lock_is_gone(tmp_path, monkeypatch, is_kept):
    journal, opened = Journal.create(tmp_path, ABOUT), os.open
    journal.refused = int(is_kept)

    def open_and_settle(path, *options):
        descriptor = opened(path, *options)
        journal.settle()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_settle)
    with pytest.raises(FileNotFoundError):
        Journal.adopt(journal.path)
