import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from convrec.service.feedback.journal import FeedbackJournal
from convrec.service.feedback.records import EVENTS, Answer, Event, Shown, new_answer_id, time_of

_texts = st.text(st.characters(exclude_categories=["Cs"]))
_times = st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC))
_messages = st.lists(st.dictionaries(_texts, _texts | st.integers(-(2**53), 2**53) | st.none() | st.lists(_texts)))
_shown = st.builds(Shown, _texts, st.integers(1, 1000), _texts, _texts)
_many = st.lists(_texts).map(tuple)
_answers = st.builds(
    Answer,
    *(_texts, _times, _texts | st.none(), _texts | st.none(), _texts | st.none(), st.floats(0, 1e6)),
    *(_messages | st.none(), st.lists(_shown).map(tuple), _many, _many | st.none()),
)
_events = st.builds(Event, _texts, _texts, _texts, _texts, st.sampled_from(EVENTS), _times)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(_answers | _events, max_size=4))
def test_a_journal_gives_back_what_was_recorded(tmp_path_factory, records):
    journal = FeedbackJournal.create(tmp_path_factory.mktemp("journal"))
    assert all(journal.append(record) for record in records)
    assert [record for record, _ in journal.unsent()] == records
    journal.remove()


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2500, 1, 1), timezones=st.just(UTC)))
def test_an_id_is_a_uuid_of_version_7_and_tells_its_time(now):
    made = uuid.UUID(hex=new_answer_id(now))
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert timedelta(0) <= now - time_of(made.hex) < timedelta(milliseconds=1)


def test_the_time_of_rfc_9562s_example():
    assert time_of("017f22e279b07cc398c4dc0c0c07398f") == datetime(2022, 2, 22, 19, 22, 22, tzinfo=UTC)


def test_later_ids_sort_after_earlier_ones_and_differ_within_a_millisecond():
    now = datetime(2026, 5, 4, tzinfo=UTC)
    assert new_answer_id(now) < new_answer_id(now + timedelta(milliseconds=1))
    assert len({new_answer_id(now) for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    "text", ["", "x" * 32, "d7a87c380d564a558440f0d05a15b887", "0" * 32, "f" * 32, "017f22e279b07cc398c4dc0c0c07398"]
)
def test_other_texts_have_no_time(text):
    assert time_of(text) is None
