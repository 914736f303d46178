"""Take the pictures of README.md and docs/recommender.md; needs Chromium (`make test-tools`).

python docs/draw_pages.py http://127.0.0.1:7861          # a running `convrec app`
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from convrec.service.reasons import EXAMPLES

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"


def draw_app(view: Any, address: str, picture: Path) -> None:
    """Ask once, accept the first item, reject the third, and photograph the window."""
    view.goto(address)
    view.get_by_label("Your message").fill(EXAMPLES[-1].text)
    view.keyboard.press("Enter")
    champion = view.locator(".list:not(.other)")
    champion.locator("[data-event=accepted]").nth(0).click()
    champion.locator("[data-event=rejected]").nth(2).click()
    view.wait_for_timeout(8_000)  # until the message about the last click has gone
    view.screenshot(path=picture)


def main() -> None:
    """Take the pictures."""
    from tests.tools import require  # noqa: PLC0415  (of the project's root)

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="the address of the app")
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=require("Chromium"), args=["--no-sandbox"])
        for theme in ("light", "dark"):
            view = browser.new_page(viewport={"width": 1000, "height": 860}, color_scheme=theme)
            draw_app(view, options.address, FIGURES / f"app-{theme}.png")
            view.close()
        browser.close()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
