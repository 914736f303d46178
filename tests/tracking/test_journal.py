import json
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.tracking import journal as journals
from convrec.tracking.journal import About, Journal
from tests.tracking.unsent import waiting

ABOUT = About("r1", "sft", "http://127.0.0.1:5000", True, 7)


def _records(journal: Journal, lane: journals.Lane = "records") -> list[dict]:
    return [record for record, _ in journal.unsent(lane)]


def test_records_come_back_in_order_with_their_times(tmp_path):
    journal = Journal.create(tmp_path, ABOUT)
    journal.append("metrics", step=3, metrics={"loss": 0.5}, at=11)
    journal.append("tags", tags={"a": "b"})
    first, second = _records(journal)
    assert first == {"kind": "metrics", "at": 11, "step": 3, "metrics": {"loss": 0.5}}
    assert second["tags"] == {"a": "b"} and second["at"] > 1_700_000_000_000


def test_each_lane_is_sent_by_itself_and_where_it_was_is_remembered(tmp_path):
    journal = Journal.create(tmp_path, ABOUT)
    journal.append("tags", tags={"n": "1"})
    journal.append_file(b"text", "a/b.txt")
    journal.append("tags", tags={"n": "2"})
    ends = [end for _, end in journal.unsent("records")]
    journal.mark_sent("records", ends[0])
    journal.release()
    again = Journal.adopt(journal.path)
    assert [record["tags"]["n"] for record in _records(again)] == ["2"] and waiting(again)
    (artifact,) = _records(again, "artifacts")
    assert artifact["path"] == "a/b.txt" and again.file(artifact).read_bytes() == b"text"
    again.mark_sent("records", ends[1])
    again.mark_sent("artifacts", ends[1])
    assert not waiting(again)


@settings(max_examples=40)
@given(st.lists(st.dictionaries(st.text(), st.text()), max_size=5), st.data())
def test_a_journal_cut_anywhere_keeps_its_whole_records(tags, data):
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal.create(Path(folder), ABOUT)
        for each in tags:
            journal.append("tags", tags=each)
        content = (journal.path / "records.jsonl").read_bytes()
        cut = data.draw(st.integers(0, len(content)))
        (journal.path / "records.jsonl").write_bytes(content[:cut])
        kept = [record["tags"] for record in _records(journal)]
        assert kept == tags[: content[:cut].count(b"\n")]
        journal.release()


def test_a_record_that_a_full_disk_cut_takes_no_other_with_it(tmp_path, monkeypatch, caplog):
    journal, write = Journal.create(tmp_path, ABOUT), os.write
    journal.append("tags", tags={"n": "1"})
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:20]))
    journal.append("tags", tags={"n": "2"})
    monkeypatch.setattr(os, "write", write)
    journal.append("tags", tags={"n": "3"})
    kinds = [(record["kind"], record.get("tags")) for record in _records(journal)]
    assert kinds == [("tags", {"n": "1"}), (journals.TORN, None), ("tags", {"n": "3"})]
    assert "cannot be written" in caplog.text
    assert journal.last_status()[0] is None


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('{"kind":"metrics","at":1,"metrics":{"loss":1.0}}', ["step"]),
        ('{"kind":"metrics","step":1}', ["at", "metrics"]),
        ('{"kind":"metrics","at":1,"step":"1","metrics":3}', ["metrics", "step"]),
        ('{"kind":"tags","at":1}', ["tags"]),
        ('{"kind":"params","at":1,"params":[]}', ["params"]),
        ('{"kind":"status","at":1}', ["status"]),
        ('{"kind":"artifact","at":1,"path":"a.txt"}', ["file"]),
        ('{"at":1}', None),
        ("[1, 2]", None),
        ("7", None),
    ],
)
def test_a_record_that_lacks_a_field_is_torn(tmp_path, line, wrong):
    journal = Journal.create(tmp_path, ABOUT)
    (journal.path / "records.jsonl").write_text(f"{line}\n")
    (found,) = waiting(journal)
    assert (found["kind"], found.get("wrong"), found["line"].strip()) == (journals.TORN, wrong, line)
    assert journal.last_status() == (None, 7)


def test_a_file_that_cannot_be_copied_stops_nothing(tmp_path, caplog):
    journal = Journal.create(tmp_path, ABOUT)
    journal.append_file(tmp_path / "nowhere.csv", "nowhere.csv")
    assert not waiting(journal) and "is not recorded" in caplog.text


def test_a_living_process_keeps_its_journal(tmp_path):
    journal = Journal.create(tmp_path, ABOUT)
    assert Journal.adopt(journal.path) is None
    journal.release()
    adopted = Journal.adopt(journal.path)
    assert adopted.about == ABOUT and Journal.adopt(journal.path) is None


def test_a_second_journal_of_a_run_has_a_folder_of_its_own(tmp_path):
    first, second = Journal.create(tmp_path, ABOUT), Journal.create(tmp_path, ABOUT)
    assert first.path.name == "r1" and second.path.name.startswith("r1.")
    assert set(journals.left_journals(tmp_path)) == {first.path, second.path}


def test_what_a_kill_left_half_made_or_half_removed_goes_away(tmp_path):
    journal = Journal.create(tmp_path, ABOUT)
    half_made, fresh, half_removed = (tmp_path / name for name in (".new-a", ".new-b", ".sent-c"))
    for path in (half_made, fresh, half_removed):
        path.mkdir()
        (path / "lock").touch()
    os.utime(half_made, (0, 0))
    assert journals.left_journals(tmp_path) == [journal.path]
    assert {path.name for path in tmp_path.iterdir()} == {"r1", ".new-b"}
    journal.remove()
    assert journals.left_journals(tmp_path) == []


def test_journals_that_others_name_and_remove_meanwhile_break_no_look(tmp_path):
    """`read_about` and the times of half-made ones are of folders that may be gone."""
    waiting = Journal.create(tmp_path, About("r0", "sft", "x", True, 1))
    done = threading.Event()

    def make_and_remove(number: int) -> None:
        while not done.is_set():
            Journal.create(tmp_path, About(f"w{number}", "sft", "x", True, 2)).remove()

    workers = [threading.Thread(target=make_and_remove, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(400):
            assert journals.left_journals(tmp_path)[0] == waiting.path
    finally:
        done.set()
        for worker in workers:
            worker.join()


def test_a_journal_that_goes_during_the_look_is_none_of_those_left(tmp_path, monkeypatch):
    stays, goes = (Journal.create(tmp_path, About(name, "sft", "x", True, 1)) for name in ("r1", "r2"))
    (tmp_path / ".new-named").mkdir()
    read, stat = journals.read_about, Path.stat

    def read_late(path: Path) -> About:
        if path == goes.path and path.exists():
            goes.remove()
        return read(path)

    def stat_late(path: Path, **options: bool) -> os.stat_result:
        if path.name == ".new-named":
            path.rmdir()
        return stat(path, **options)

    monkeypatch.setattr(journals, "read_about", read_late)
    monkeypatch.setattr(Path, "stat", stat_late)
    assert journals.left_journals(tmp_path) == [stays.path]


def test_files_beside_the_journals_are_none(tmp_path):
    (tmp_path / ".note-1").touch()
    (tmp_path / journals.REFUSED).touch()
    assert journals.left_journals(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"\0\0", b"[]", b'{"run_id": "r1"}'])
def test_a_journal_that_does_not_tell_its_run_is_told_and_left(tmp_path, caplog, content):
    """A power failure may leave a file without its content."""
    torn, whole = (Journal.create(tmp_path, About(name, "sft", "x", True, 1)) for name in ("r1", "r2"))
    (torn.path / "run.json").write_bytes(content)
    assert journals.left_journals(tmp_path) == [whole.path]
    assert str(torn.path / "run.json") in caplog.text and torn.path.exists()


@pytest.mark.parametrize("content", [b"", b"\0\0", b"null", b'"text"'])
def test_a_journal_whose_position_cannot_be_read_is_sent_from_its_start(tmp_path, content):
    journal = Journal.create(tmp_path, ABOUT)
    journal.append("tags", tags={"n": "1"})
    journal.mark_sent("records", [end for _, end in journal.unsent("records")][-1])
    (journal.path / "position.json").write_bytes(content)
    journal.release()
    again = Journal.adopt(journal.path)
    assert [record["tags"]["n"] for record in _records(again)] == ["1"]


def test_a_journal_that_is_renamed_before_it_is_read_stays_free(tmp_path, monkeypatch):
    journal = Journal.create(tmp_path, ABOUT)
    journal.release()

    def gone(path: Path) -> About:
        raise FileNotFoundError(path)

    monkeypatch.setattr(journals, "read_about", gone)
    with pytest.raises(FileNotFoundError):
        Journal.adopt(journal.path)
    monkeypatch.undo()
    assert Journal.adopt(journal.path) is not None


def test_a_refused_artifact_keeps_its_copy(tmp_path):
    journal = Journal.create(tmp_path, ABOUT)
    journal.append_file(b"text", "a.txt")
    (record,) = _records(journal, "artifacts")
    journal.refuse(record, "too large")
    journal.remove()
    refused = json.loads((tmp_path / journals.REFUSED).read_text())
    assert (refused["run_id"], refused["reason"], refused["record"]["path"]) == ("r1", "too large", "a.txt")
    assert (tmp_path / refused["file"]).read_bytes() == b"text"
