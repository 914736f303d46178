import uuid
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from convrec.service.feedback.journal import Journal
from convrec.service.feedback.records import Answer, Event, EventName, Shown, new_answer_id, usable_answer_id

_texts = st.text(st.characters(exclude_categories=["Cs"]))
_times = st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC))
_messages = st.lists(st.dictionaries(_texts, _texts | st.integers(-(2**53), 2**53) | st.none() | st.lists(_texts)))
_shown = st.builds(Shown, _texts, st.integers(1, 1000), _texts, _texts)
_answers = st.builds(
    Answer,
    *(_texts, _times, _texts | st.none(), _texts | st.none(), _texts | st.none(), st.floats(0, 1e6)),
    *(_messages | st.none(), st.lists(_shown).map(tuple)),
)
_events = st.builds(Event, _texts, _texts, _texts, _texts, st.sampled_from(get_args(EventName)), _times)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(_answers | _events, max_size=4))
def test_a_journal_gives_back_what_was_recorded(tmp_path_factory, records):
    journal = Journal.create(tmp_path_factory.mktemp("journal"), "sqlite:///feedback.db")
    for record in records:
        journal.append(record)
    assert list(journal.records()) == records
    journal.clear()
    journal.close()


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2500, 1, 1), timezones=st.just(UTC)))
def test_an_id_is_a_uuid_of_version_7_with_its_time(now):
    made = uuid.UUID(hex=new_answer_id(now))
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    for spelt in (made.hex, str(made), str(made).upper(), f"{{{made}}}", made.urn, made.urn.upper()):
        assert usable_answer_id(spelt) == made.hex
    assert made.int >> 80 == (now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert new_answer_id(now) < new_answer_id(now + timedelta(milliseconds=1))
    assert new_answer_id(now) != new_answer_id(now)


@pytest.mark.parametrize("text", ["", "x" * 32, "d7a87c380d564a558440f0d05a15b887", "0" * 32, "f" * 32])
def test_other_texts_are_no_ids(text):
    assert usable_answer_id(text) == ""
