"""Take the picture of docs/recommender.md from a running `convrec app`.

    python docs/draw_app.py http://127.0.0.1:7861

Asks once, accepts the first item and rejects the third. Needs Chromium (`make test-tools`).
"""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "figures" / "app.png"


def draw(address: str) -> None:
    """Write the picture of the page."""
    from tests.tools import require  # noqa: PLC0415  (of the project's root)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=require("Chromium"), args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1200, "height": 860}, color_scheme="light")
        view.goto(address)
        view.get_by_label("Your message").fill("I loved Heat and Alien. Something tense in space, please")
        view.keyboard.press("Enter")
        champion = view.locator(".list:not(.other)")
        champion.locator("[data-event=accepted]").nth(0).click()
        champion.locator("[data-event=rejected]").nth(2).click()
        view.wait_for_timeout(8_000)  # until the message about the last click has gone
        view.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    draw(sys.argv[1])
