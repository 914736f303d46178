"""The page of an online experiment in headless Chromium: phone and desk, light and dark mode."""

import pytest

from convrec.feedback.store import FeedbackStore
from convrec.paths import Paths
from convrec.registry.experiment import start_experiment
from tests.registry.experimenting import answer_users
from tests.registry.registered import promote_in_turn

BY = "<script>alert(1)</script>"


@pytest.fixture(params=["ab", "interleaving"])
def address(request, client, cli, tmp_path) -> str:
    promote_in_turn(client, "1")
    url = f"sqlite:///{tmp_path}/feedback/feedback.db"
    store = FeedbackStore(url)
    answer_users(store, start_experiment(client, "2", request.param, 0.5, BY), (0.2, 0.4), 200)
    store.close()
    assert cli("experiment", "status", "--feedback", url).status == 0
    return Paths().experiment_page.absolute().as_uri()


def test_both_plots_are_drawn_and_nothing_overflows(browser, address):
    for width, mode in [(390, "dark"), (1440, "light")]:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=mode)
        page, complaints, asked = context.new_page(), [], []
        page.on("console", lambda message, into=complaints: message.type == "log" or into.append(message.text))
        page.on("pageerror", lambda error, into=complaints: into.append(str(error)))
        page.on("request", lambda request, into=asked: into.append(request.url))
        page.goto(address)
        page.wait_for_function(
            "() => document.querySelectorAll('.plot .scatterlayer > .trace').length >= 6", timeout=20_000
        )
        assert page.locator("#plot-sequence .trace").count() == 4 and page.locator("#plot-p .trace").count() == 2
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        words = page.locator("body").inner_text()
        assert f"by {BY}. Running." in words and "Version 2 is better than version 1" in words
        assert not complaints and asked == [address]
        context.close()
