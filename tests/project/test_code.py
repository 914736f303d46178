"""The key of a piece of work: what changes it, and what does not."""

import pytest

from convrec.project import code
from convrec.project.code import code_files, make_key

MODULE = '''"""A module."""

from convrec.b import two
from convrec.inner.three import three


def one(x):
    """Return one more."""
    # why
    return x + two()
'''


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """A package of some modules; returns the digest of the code of `a.py`."""
    package = tmp_path / "convrec"
    package.mkdir()
    (package / "a.py").write_text(MODULE)
    (package / "b.py").write_text("def two():\n    return 2\n")
    (package / "c.py").write_text("unrelated = 1\n")
    inner = package / "inner"
    inner.mkdir()
    (inner / "__init__.py").write_text("from convrec.d import four\n")
    (inner / "three.py").write_text("three = 3\n")
    (package / "d.py").write_text("four = 4\n")
    monkeypatch.setattr(code, "PACKAGE", package)
    monkeypatch.setattr(code, "_ROOT", tmp_path)

    def of(file=None, old="", new="", libraries=()):
        if file:
            path = package / file
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))
        code._imports.cache_clear()
        return make_key({}, [], code_files(["convrec.a"]), libraries).made_by

    yield of
    code._imports.cache_clear()


@pytest.mark.parametrize(
    ("file", "old", "new", "is_same"),
    [
        ("a.py", "# why", "# another reason", True),
        ("a.py", "Return one more.", "Return its successor.", True),
        ("a.py", "x + two()", "(x  +  two())", True),
        ("c.py", "1", "2", True),
        ("a.py", "x +", "x -", False),
        ("b.py", "2", "3", False),
        ("inner/three.py", "3", "4", False),
        ("inner/__init__.py", "four", "four as five", False),
        ("d.py", "4", "5", False),
    ],
)
def test_code_and_what_it_imports_change_the_digest_comments_and_other_modules_do_not(digest, file, old, new, is_same):
    assert (digest() == digest(file, old, new)) == is_same


def test_another_version_of_a_library_changes_the_digest(digest, monkeypatch):
    before = digest(libraries=("torch", "trl", "not-installed"))
    monkeypatch.setattr(code, "version", lambda library: "9.9" if library == "trl" else "2.13.0")
    assert digest() != before != digest(libraries=("torch", "trl", "not-installed"))


def test_parameters_and_inputs_change_the_task_and_not_who_made_it(tmp_path):
    data = tmp_path / "rows.parquet"
    data.write_bytes(b"one")
    key = make_key({"lr": 1}, [data])
    assert key == make_key({"lr": 1}, [data]) and str(key) == key.task + key.made_by
    assert key.task != make_key({"lr": 2}, [data]).task
    data.write_bytes(b"two")
    changed = make_key({"lr": 1}, [data])
    assert key.task != changed.task and key.made_by == changed.made_by
