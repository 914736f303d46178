import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.data.json_objects import repeated_key


class _Pairs(list):
    """An object of JSON, as the pairs that are written, which may repeat a key."""


_KEYS = st.text(alphabet='ab":\\ \u00e9', max_size=3)
_VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a":, {}\\', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(_KEYS, inner), max_size=4).map(_Pairs),
    max_leaves=12,
)


def _written(value, space):
    if isinstance(value, _Pairs):
        pairs = (f"{json.dumps(key)}{space}:{space}{_written(inner, space)}" for key, inner in value)
        return "{" + f",{space}".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_written(inner, space) for inner in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _repeats(value):
    keys = [key for key, _ in value] if isinstance(value, _Pairs) else []
    inner = [part for _, part in value] if isinstance(value, _Pairs) else value if isinstance(value, list) else []
    return len(set(keys)) < len(keys) or any(map(_repeats, inner))


@given(_VALUES, st.sampled_from(["", " ", "\t", "\r\n"]))
def test_a_key_is_found_wherever_it_stands_twice(value, space):
    text = _written(value, space).encode()
    assert (repeated_key(text, json.loads(text)) is not None) == _repeats(value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b'{"a": 1, "a": 2}', "a"),
        (b'{"a": 1, "\\u0061": 2}', "a"),
        (b'[{"a": 1}, {"a": 2}]', None),
        (b'{"a": "say \\":\\", twice: \\":"}', None),
        (b'{"a": {"x": 1, "y": 2}, "a": 3, "b": "\\":\\":"}', "a"),  # as many ends as keys would have
    ],
)
def test_which_key_it_is(text, key):
    assert repeated_key(text, json.loads(text)) == key
