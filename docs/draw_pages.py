"""Take the pictures of docs/online-experiments.md and docs/recommender.md; needs Chromium (`make test-tools`).

python docs/draw_pages.py experiment runs/experiment.html    # the page of the last `convrec experiment status`
python docs/draw_pages.py app http://127.0.0.1:7861          # a running `convrec app`
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"


def draw_experiment(view: Any, file: str) -> None:
    """Photograph the whole page once both plots are drawn."""
    view.goto(Path(file).absolute().as_uri())
    for name in ("sequence", "p"):
        view.wait_for_selector(f"#plot-{name} .main-svg")
    view.screenshot(path=FIGURES / "experiment.png", full_page=True)


def draw_app(view: Any, address: str) -> None:
    """Ask once, accept the first item, reject the third, and photograph the window."""
    view.goto(address)
    view.get_by_label("Your message").fill("I loved Heat and Alien. Something tense in space, please")
    view.keyboard.press("Enter")
    champion = view.locator(".list:not(.other)")
    champion.locator("[data-event=accepted]").nth(0).click()
    champion.locator("[data-event=rejected]").nth(2).click()
    view.wait_for_timeout(8_000)  # until the message about the last click has gone
    view.screenshot(path=FIGURES / "app.png")


PAGES = {"experiment": (draw_experiment, 1000, 900), "app": (draw_app, 1200, 860)}  # width and height of the window


def main() -> None:
    """Take one picture."""
    from tests.tools import require  # noqa: PLC0415  (of the project's root)

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", choices=PAGES)
    parser.add_argument("place", help="the file of the experiment's page, or the address of the app")
    options = parser.parse_args()
    draw, width, height = PAGES[options.page]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=require("Chromium"), args=["--no-sandbox"])
        draw(browser.new_page(viewport={"width": width, "height": height}, color_scheme="light"), options.place)
        browser.close()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
