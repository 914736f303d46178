"""What README.md and docs/ show is what a command writes."""

import json
from pathlib import Path

import pytest

from docs import draw_figures as figures
from docs import walkthrough


@pytest.fixture(scope="module")
def demo():
    return json.loads(figures.SNAPSHOT.read_text())


def test_the_table_of_the_readme_is_that_of_the_demo(demo):
    readme = (figures.ROOT / "README.md").read_text()
    assert f"<!-- demo table -->\n{figures.table(demo)}<!-- end of demo table -->" in readme


@pytest.mark.parametrize("theme", figures.THEMES)
def test_the_pictures_of_the_readme_are_drawn_from_the_demo(demo, tmp_path: Path, theme):
    drawn = tmp_path / "demo.svg"
    figures.draw(demo, drawn, **figures.THEMES[theme])
    assert drawn.read_text() == (figures.FIGURES / f"demo-{theme}.svg").read_text()


def test_the_walkthrough_has_the_library_s_numbers():
    assert walkthrough.PAGE.read_text() == walkthrough.page()
