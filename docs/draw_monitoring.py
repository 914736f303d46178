"""Draw docs/figures/monitoring.png: the monitoring report of a simulated service whose users change; needs Chromium."""

import argparse
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from convrec.classical.embedding import TfidfEmbedder
from convrec.data.sources.synthetic import SHIFT_MONTH
from convrec.service.feedback.store import FeedbackStore
from convrec.service.monitoring.checks import run_checks
from convrec.service.monitoring.report import render_report
from convrec.service.monitoring.settings import load_monitoring
from convrec.service.monitoring.window import read_watched
from tests.service.monitoring.simulated import START, WEEK, Simulation
from tests.tools import require

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "figures" / "monitoring.png"
SEED, TRAINING, ANSWERS, CHANGE = 1, 2000, 300, 5  # conversations of training, answers a week, the week of the change
SIZE = {"width": 1180, "height": 1620}


def draw(folder: Path) -> None:
    """Write the picture; the feedback and the report are made in `folder`."""
    world = Simulation(SEED)
    rows = world.training(TRAINING)
    store = FeedbackStore(f"sqlite:///{folder / 'feedback.db'}")
    for week in range(CHANGE + 1):
        store.write(*world.week(week, SHIFT_MONTH if week >= CHANGE else SHIFT_MONTH - 1, ANSWERS))
    settings, until = load_monitoring(ROOT), START + (CHANGE + 1) * WEEK
    watched = read_watched(store, world.catalog, rows, settings, until, SEED)
    checks = run_checks(settings.checks, watched, TfidfEmbedder, SEED)
    store.close()
    page_file = folder / "monitoring.html"
    page_file.write_text(render_report(watched, checks, "a simulated model"), encoding="utf-8")
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=require("Chromium"), args=options)
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(page_file.as_uri())
        page.wait_for_selector("#plot-ranks .scatterlayer .trace", timeout=60_000)
        page.screenshot(path=PICTURE)
        browser.close()


def main() -> None:
    """Simulate, check and draw."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder))


if __name__ == "__main__":
    main()
