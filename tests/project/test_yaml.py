"""YAML as DVC reads it, and what it is refused for."""

import pytest

from convrec.project.errors import InputError
from convrec.project.yaml import parse_yaml, read_yaml


@pytest.mark.parametrize("keep_comments", [False, True])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2", "found duplicate key"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ("a: 2022-99-99", "month must be in 1..12"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(text, words, keep_comments):
    with pytest.raises(InputError, match=f"^it.yaml: .*{words}"):
        parse_yaml(text, "it.yaml", keep_comments=keep_comments)


def test_numbers_and_aliases_are_those_of_yaml_1_2():
    value = parse_yaml("a: &a {x: 1e-4, y: [1, 2]}\nb: {<<: *a, x: 2}", "it.yaml")
    assert value["b"] == {"x": 2, "y": [1, 2]} and value["a"]["x"] == 1e-4


def test_a_file_is_named(tmp_path):
    path = tmp_path / "it.yaml"
    with pytest.raises(InputError, match="it.yaml: no such file"):
        read_yaml(path)
    path.write_bytes(b"a: \xff")
    with pytest.raises(InputError, match="it.yaml: not YAML"):
        read_yaml(path)
    path.write_text("- a", encoding="utf-8")
    with pytest.raises(InputError, match="it.yaml: expected a mapping of sections, found list"):
        read_yaml(path)


def test_no_object_is_made():
    with pytest.raises(InputError, match="could not determine a constructor"):
        parse_yaml("a: !!python/object:os.system {}", "it.yaml")
