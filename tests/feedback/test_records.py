import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.feedback.records import new_answer_id, time_of


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
