"""The monitoring report in headless Chromium: on a phone and on a desk, in the light and in the dark mode."""

from pathlib import Path

import pytest

from convrec.classical.embedding import TfidfEmbedder
from convrec.data.catalog import Catalog
from convrec.data.conversations import read_rows
from convrec.project.paths import Paths
from convrec.service.feedback.store import FeedbackStore
from convrec.service.monitoring.checks import run_checks
from convrec.service.monitoring.report import render_report
from convrec.service.monitoring.settings import load_monitoring
from convrec.service.monitoring.window import read_watched
from tests.service.monitoring.conftest import CHANGE, end_of


@pytest.fixture(scope="module")
def address(watched_project, tmp_path_factory) -> str:
    paths = Paths(watched_project)
    store = FeedbackStore(f"sqlite:///{watched_project / 'feedback' / 'feedback.db'}")
    settings, rows = load_monitoring(watched_project), read_rows(paths.split("train"))
    watched = read_watched(store, Catalog.read(paths.catalog), rows, settings, end_of(CHANGE), 0)
    checks = run_checks(settings.checks, watched, TfidfEmbedder, 0)
    store.close()
    file: Path = tmp_path_factory.mktemp("report") / "monitoring.html"
    file.write_text(render_report(watched, checks, "<script>alert(1)</script>"), encoding="utf-8")
    return file.as_uri()


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_every_plot_is_drawn_and_nothing_overflows(browser, address, width, mode):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=mode)
    page, complaints, asked = context.new_page(), [], []
    page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.wait_for_function(
        "() => document.querySelectorAll('.plot .scatterlayer > .trace').length === 3", timeout=20_000
    )
    assert page.locator("#plot-weeks .errorbar").count() == 5 and page.locator("#plot-ranks .errorbar").count() == 20
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#checks tbody tr").count() == 11 and page.locator("#items tbody tr").count() == 8
    assert "Served: <script>alert(1)</script>." in page.locator("header .caption").inner_text()
    assert not complaints and asked == [address]
    context.close()
