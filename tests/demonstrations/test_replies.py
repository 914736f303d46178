import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.demonstrations.replies import Fault, fault_of, read_reply

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "content", "usage", "prompt_tokens", "error"]) | st.text(), inner
        )
    ),
    max_leaves=20,
)


@given(value=JSON)
def test_any_json_is_a_reply_or_none_and_any_fault_is_one_line(value):
    body = json.dumps(value)
    reply = read_reply(body)
    assert (reply is None) == (not isinstance(value, dict))
    if reply is not None and reply.text is not None:
        assert reply.text == value["choices"][0]["message"]["content"]
    assert len(str(fault_of(500, {}, body)).splitlines()) <= 1


@given(body=st.text() | st.just("[" * 100_000))
def test_any_body_is_read(body):
    reply = read_reply(body)
    assert reply is None or isinstance(json.loads(body), dict)
    assert fault_of(400, {}, body).kind == "400"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0.0),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "86400"}, 60.0),
        ({"retry-after": "inf"}, 60.0),
        ({"retry-after": "nan"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
def test_retry_after_is_seconds_or_milliseconds_up_to_a_minute(headers, seconds):
    assert fault_of(429, headers, "") == Fault("429", "", "retry", seconds)
