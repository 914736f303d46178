"""Take the picture of docs/online-experiments.md from a project's last `convrec experiment status`.

    python docs/draw_experiment.py [PAGE]

PAGE is `runs/experiment.html` by default. Needs Chromium (`make test-tools`).
"""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "figures" / "experiment.png"


def draw(page: Path) -> None:
    """Write the picture of a page."""
    from tests.tools import require  # noqa: PLC0415  (of the project's root)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=require("Chromium"), args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1000, "height": 900}, color_scheme="light")
        view.goto(page.absolute().as_uri())
        for name in ("sequence", "p"):
            view.wait_for_selector(f"#plot-{name} .main-svg")
        view.screenshot(path=PICTURE, full_page=True)
        browser.close()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    draw(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "runs" / "experiment.html"))
