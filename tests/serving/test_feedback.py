import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from convrec.errors import InputError
from convrec.serving import feedback
from convrec.serving.feedback import FeedbackLog

SHOWN = {"champion": ["heat", "up"], "challenger": ["up", "her"]}
MESSAGES = [{"role": "user", "content": "Amélie"}]


def _lines(log):
    return [json.loads(line) for line in log.path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def log(tmp_path) -> FeedbackLog:
    return FeedbackLog(tmp_path / "new" / "feedback.jsonl")


def test_answers_and_events_are_lines(log):
    answer_id = log.add_answer(SHOWN, MESSAGES)
    log.add_event(answer_id, "challenger", "up", "hidden")
    shown, event = _lines(log)
    assert shown.pop("time") <= event.pop("time")
    models = [{"name": name, "item_ids": ids} for name, ids in SHOWN.items()]
    assert shown == {"answer_id": answer_id, "models": models}
    assert event == {
        "answer_id": answer_id,
        "model": "challenger",
        "item_id": "up",
        "rank": 1,
        "event": "hidden",
    }


def test_conversations_are_stored_only_on_request(tmp_path):
    log = FeedbackLog(tmp_path / "feedback.jsonl", with_conversations=True)
    log.add_answer(SHOWN, MESSAGES)
    assert _lines(log)[0]["messages"] == MESSAGES


def test_a_repeated_event_is_recorded_once(log):
    answer_id = log.add_answer(SHOWN, MESSAGES)
    for event in ("accepted", "accepted", "withdrawn", "accepted"):
        log.add_event(answer_id, "champion", "heat", event)
    assert [line["event"] for line in _lines(log)[1:]] == ["accepted", "withdrawn", "accepted"]


@pytest.mark.parametrize(("model", "item_id"), [("champion", "her"), ("other", "up")])
def test_what_was_not_shown_is_rejected(log, model, item_id):
    answer_id = log.add_answer(SHOWN, MESSAGES)
    with pytest.raises(InputError, match="was not shown"):
        log.add_event(answer_id, model, item_id, "accepted")
    with pytest.raises(InputError, match="is unknown or too old; ask again"):
        log.add_event("0" * 32, "champion", "up", "accepted")
    assert len(_lines(log)) == 1


def test_old_answers_are_forgotten(log, monkeypatch):
    monkeypatch.setattr(feedback, "_MAX_ANSWERS", 2)
    first, second, _ = [log.add_answer(SHOWN, MESSAGES) for _ in range(3)]
    log.add_event(second, "champion", "up", "accepted")
    with pytest.raises(InputError, match="too old"):
        log.add_event(first, "champion", "up", "accepted")


def test_lines_of_threads_and_processes_stay_whole(log):
    other = FeedbackLog(log.path)
    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(lambda i: (log, other)[i % 2].add_answer(SHOWN, MESSAGES), range(400)))
    assert sorted(line["answer_id"] for line in _lines(log)) == sorted(ids)


def test_an_event_that_was_not_written_can_be_sent_again(log):
    answer_id = log.add_answer(SHOWN, MESSAGES)
    log.path.unlink()
    log.path.mkdir()
    with pytest.raises(OSError, match="directory"):
        log.add_event(answer_id, "champion", "up", "accepted")
    log.path.rmdir()
    log.add_event(answer_id, "champion", "up", "accepted")
    assert _lines(log)[0]["event"] == "accepted"


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(InputError, match="--feedback .*: a folder; name a file"):
        FeedbackLog(tmp_path)
