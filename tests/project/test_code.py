"""The digest of a stage's code: what changes it, and what does not."""

import pytest

from convrec.project import code
from convrec.project.code import code_digest, code_files

MODULE = '''"""A module."""

from convrec.b import two


def one(x):
    """Return one more."""
    # why
    return x + two()
'''


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """A package of two modules and one more; returns the digest of their code."""
    package = tmp_path / "convrec"
    package.mkdir()
    (package / "a.py").write_text(MODULE)
    (package / "b.py").write_text("def two():\n    return 2\n")
    (package / "c.py").write_text("unrelated = 1\n")
    monkeypatch.setattr(code, "PACKAGE", package)
    monkeypatch.setattr(code, "_ROOT", tmp_path)

    def of(file=None, old="", new=""):
        if file:
            path = package / file
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))
        code._imports.cache_clear()
        return code_digest(code_files(["convrec.a"]))

    yield of
    code._imports.cache_clear()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("a.py", "# why", "# another reason"),
        ("a.py", "Return one more.", "Return its successor."),
        ("a.py", "x + two()", "(x  +  two())"),
        ("c.py", "1", "2"),
    ],
)
def test_comments_docstrings_formatting_and_other_modules_change_nothing(digest, file, old, new):
    assert digest() == digest(file, old, new)


@pytest.mark.parametrize(("file", "old", "new"), [("a.py", "x +", "x -"), ("b.py", "2", "3")])
def test_an_edit_of_a_module_or_of_one_that_it_imports_changes_the_digest(digest, file, old, new):
    assert digest() != digest(file, old, new)
