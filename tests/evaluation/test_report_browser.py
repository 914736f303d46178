"""The report in headless Chromium: on a phone and on a desk, in the light and in the dark mode."""

import json

import pytest

from convrec.evaluation.page import DARK_COLORS, INK
from tests.evaluation.report_files import build_report, report_params

DRAWN = """() => [...document.querySelectorAll(".plot")].map((plot) => ({
  name: plot.id,
  wanted: JSON.parse(plot.nextElementSibling.textContent).data.length,
  drawn: plot.querySelectorAll(".scatterlayer > .trace, .barlayer > .trace, .heatmaplayer .hm image").length,
  places: plot.querySelectorAll(".scatterlayer path, .barlayer path, .heatmaplayer image").length,
}))"""
CUT_TEXTS = """() => [...document.querySelectorAll(".plot")].flatMap((plot) => {
  const box = plot.getBoundingClientRect();
  return [...plot.querySelectorAll("svg text")].filter((text) => {
    const { left, right, top, bottom, width } = text.getBoundingClientRect();
    return width && (left < box.left - 1 || right > box.right + 1 || top < box.top - 1 || bottom > box.bottom + 1);
  }).map((text) => `${plot.id}: ${text.textContent}`);
})"""
TICKS = "() => [...new Set([...document.querySelectorAll('.plot .xtick text')].map((t) => getComputedStyle(t).fill))]"
UNFOLD = "() => document.querySelectorAll('details').forEach((part) => { part.open = true; })"
PAPER = "() => getComputedStyle(document.body).backgroundColor"


def _rgb(color):
    return f"rgb({', '.join(str(int(color[place : place + 2], 16)) for place in (1, 3, 5))})"


INKS = {"light": _rgb(INK), "dark": _rgb(DARK_COLORS[INK])}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    paths, _ = build_report(tmp_path_factory.mktemp("report"), report_params())
    return paths.report.as_uri()


def _open(browser, address, width, mode):
    """Return the loaded page, and what it complained of and asked for."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=mode)
    page, complaints, asked = context.new_page(), [], []
    page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.evaluate(UNFOLD)
    page.wait_for_function(f"({DRAWN})().every((plot) => plot.drawn === plot.wanted)", timeout=20_000)
    return page, complaints, asked


@pytest.mark.parametrize(("width", "mode"), [(390, "dark"), (1440, "light")])
def test_every_plot_is_drawn_and_nothing_overflows(browser, address, width, mode):
    page, complaints, asked = _open(browser, address, width, mode)
    plots = page.evaluate(DRAWN)
    assert len(plots) >= 13 and all(plot["places"] for plot in plots), plots
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT_TEXTS) == []
    assert page.evaluate(TICKS) == [INKS[mode]]
    assert [url for url in asked if url != address] == []
    assert complaints == []
    page.context.close()


@pytest.mark.slow  # of the tests in a browser, CI runs one
def test_the_button_changes_the_mode_and_is_remembered(browser, address):
    page, complaints, _ = _open(browser, address, 1440, "light")
    light = page.evaluate(PAPER)
    page.get_by_role("button", name="Dark mode").click()
    page.wait_for_function(f"JSON.stringify(({TICKS})()) === {json.dumps(json.dumps([INKS['dark']]))}")
    dark = page.evaluate(PAPER)
    page.reload()
    page.get_by_role("button", name="Light mode").wait_for()
    assert dark != light and page.evaluate(PAPER) == dark and complaints == []
    page.context.close()
