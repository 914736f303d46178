"""YAML within bounds: what it is refused for, and how soon."""

import time
from pathlib import Path

import pytest

from convrec.project.errors import InputError
from convrec.project.yaml import MAX_BYTES, MAX_DEPTH, parse_yaml, read_commented_yaml, read_yaml

_TWICE = "".join(f"a{level}: &a{level} [*a{level - 1}, *a{level - 1}]\n" for level in range(1, 30))
BOMB = f"a0: &a0 [x, x]\n{_TWICE}"  # 2**31 values in 700 bytes


@pytest.mark.parametrize("keep_comments", [False, True])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "more than 100,000 values, counting each alias"),
        ("a: &a [*a]", "an alias inside the value that it refers to"),
        pytest.param("[" * 5000, "nested deeper than 50 levels", marks=pytest.mark.slow),
        (f"a: &x {'[' * 30}{']' * 30}\nb: {'[' * 30}*x{']' * 30}", "nested deeper than 50 levels"),
        ("x: " + "y" * MAX_BYTES, "2,000,003 bytes of YAML; at most 2,000,000 are read"),
        ("a: 1\na: 2", "found duplicate key"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ("a: 2022-99-99", "month must be in 1..12"),
        (f"a: {'1' * 5000}", "limit"),
        ('a: "x\\0y"', "line 1 contains a NUL"),
        ('a: "\\ud800"', "line 1 contains a NUL or an incomplete character"),
    ],
    ids=range(11),
)
def test_what_cannot_be_used_is_refused_at_once_in_one_line(text, words, keep_comments):
    started = time.process_time()
    with pytest.raises(InputError) as error:
        parse_yaml(text, "it.yaml", keep_comments=keep_comments)
    message = str(error.value)
    assert message.startswith("it.yaml: ") and words in message and "\n" not in message
    assert time.process_time() - started < 20  # hours, without the bounds


def test_aliases_and_depth_within_the_bounds_are_read():
    deep = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    value = parse_yaml(f"a: &a {{x: 1e-4, y: [1, 2]}}\nb: {{<<: *a, x: 2}}\nc: {deep}", "it.yaml")
    assert value["b"] == {"x": 2, "y": [1, 2]} and value["a"]["x"] == 1e-4


@pytest.mark.parametrize("read", [read_yaml, read_commented_yaml])
def test_a_file_is_named(read, tmp_path):
    path = tmp_path / "it.yaml"
    with pytest.raises(InputError, match="it.yaml: no such file"):
        read(path)
    path.write_bytes(b"a: \xff")
    with pytest.raises(InputError, match="it.yaml: not usable as YAML"):
        read(path)
    path.write_text("- a", encoding="utf-8")
    with pytest.raises(InputError, match="it.yaml: expected a mapping of sections, found list"):
        read(path)


@pytest.mark.parametrize("path", ["dvc.lock", "dvc.yaml", "params.yaml", "promotion.yaml"])
def test_the_projects_own_files_are_far_within_the_bounds(path):
    read_yaml(Path(path))
    assert Path(path).stat().st_size < MAX_BYTES / 20


def test_no_object_is_made():
    with pytest.raises(InputError, match="could not determine a constructor"):
        parse_yaml("a: !!python/object:os.system {}", "it.yaml")
