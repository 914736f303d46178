import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.project.redaction import redact_all, redactor

SECRET_NAMES = ("OPENAI_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "aws_secret", "PREFECT_API_AUTH_STRING")


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_values_of_secret_variables_are_masked(name):
    assert redactor({name: "abc(123"})("x abc(123 y") == "x *** y"
    assert redactor({name: "abc(123\n"})("x abc(123 y") == "x *** y", "sent without the line's end"


def test_other_variables_and_short_values_are_not():
    redact = redactor({"PATH": "/usr/bin", "KEYBOARD": "qwertz", "SHORT_KEY": "train", "EMPTY_TOKEN": ""})
    assert redact("train on /usr/bin with qwertz") == "train on /usr/bin with qwertz"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://user:pass@host:5000/x", "http://***@host:5000/x"),
        ("postgresql://me@db/mlflow and s3://k:v@b", "postgresql://***@db/mlflow and s3://***@b"),
        ("postgresql://me:p@ss/w@rd@db/mlflow, s3://b", "postgresql://***@db/mlflow, s3://b"),
        ("https://host/?token=abc&n=1 &api_key=x#a", "https://host/?token=***&n=1 &api_key=***#a"),
        ("https://host/?keyword=heat&tokens=3", "https://host/?keyword=heat&tokens=3"),
        ("https://host/a@b mail a@b.c", "https://host/a@b mail a@b.c"),
    ],
)
def test_credentials_of_uris_are_masked(text, expected):
    assert redactor({})(text) == expected


TEXTS = st.text(st.characters(exclude_characters="@"), max_size=9)


@settings(max_examples=50)
@given(st.recursive(TEXTS | st.none(), lambda v: st.lists(v) | st.dictionaries(TEXTS, v), max_leaves=9))
def test_no_secret_is_left_at_any_depth(value):
    masked = redact_all({"a": [value, "key-123456"], "key-123456": "b key-123456"}, redactor({"X_KEY": "key-123456"}))
    assert "key-123456" not in repr(masked) and masked["***"] == "b ***"
    assert redact_all(value, redactor({})) == value
