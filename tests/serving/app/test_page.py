"""The page in headless Chromium, with two random models."""

import re

import pytest
from playwright.sync_api import expect

from tests.serving.app.serving import serve
from tests.serving.recommending import make_recommender

REFUSED = "the server responded with a status of 400"  # Chromium's own line about an answer that the page explains
CONTRASTS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const level = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = rgb(getComputedStyle(node).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll('body *')].filter((node) => node.checkVisibility()
    && ([...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || node.matches('input, textarea')));
  return texts.map((node) => {
    const [one, other] = [rgb(getComputedStyle(node).color), behind(node)].map(level);
    return [(Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05), node.textContent.trim()];
  });
}"""


@pytest.fixture(scope="module")
def address():
    """The address of a server with champion and challenger."""
    models = {"champion, version 1": make_recommender(0), "challenger, version 2": make_recommender(1)}
    with serve(models) as served:
        yield f"http://127.0.0.1:{served.port}/"


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1440, "dark"), (390, "dark"), (1440, "light")])
def test_a_conversation_gives_two_lists(browser, address, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(20_000)
    expect.set_options(timeout=20_000)
    problems, hosts = [], set()
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    rows, lists = page.locator("tbody tr"), page.locator("#lists")
    page.goto(address)
    expect(page.locator("#status")).to_contain_text("champion, version 1: 15 items")
    expect(page.locator("#words")).to_have_attribute("placeholder", re.compile("^What films would you like"))

    page.get_by_label("Items").fill("4")
    page.get_by_label("Your turn").fill("I loved Heat")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(8)
    assert page.locator(".list h3").all_inner_texts() == ["champion, version 1", "challenger, version 2"]
    assert not [text for text in page.locator("td.item").all_inner_texts() if text.startswith("Heat")]
    expect(page.locator("#turns li")).to_have_count(1)

    title = page.locator("td.item").first.inner_text()
    page.get_by_role("button", name=f"Never {title}").first.click()
    expect(page.get_by_role("button", name=f"Stop denying {title}")).to_be_visible()
    expect(lists).to_have_attribute("aria-busy", "false")
    expect(page.get_by_role("button", name=f"Never {title}")).to_have_count(0)
    expect(rows).to_have_count(8)
    assert problems == []

    page.get_by_label("Never these").fill("Haet")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("deny: 'Haet' is not in the catalog; did you mean 'Heat'?")
    assert all(REFUSED in text for text in problems)
    page.get_by_role("button", name="Stop denying Haet").click()
    expect(page.get_by_role("alert")).to_have_count(0)

    page.get_by_role("button", name="Edit turn 1").click()
    page.get_by_label("Words of turn 1").fill("a film, but no Heat: " + "x" * 200)
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#turns li p")).to_contain_text("but no Heat")
    expect(lists).to_have_attribute("aria-busy", "false")

    ratios = page.evaluate(CONTRASTS)
    assert len(ratios) > 40 and [text for ratio, text in ratios if ratio < 4.5] == []
    overflow = "() => document.documentElement.scrollWidth - window.innerWidth"
    assert page.evaluate(overflow) <= 0
    dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert dark == (scheme == "dark")
    talk, answer = (page.locator(name).bounding_box() for name in ("#talk", "#answer"))
    assert (answer["x"] > talk["x"] + talk["width"]) == (width == 1440) == (answer["y"] < talk["y"] + talk["height"])

    page.get_by_role("button", name="Reset").click()
    expect(rows).to_have_count(0)
    expect(page.locator("#turns li")).to_have_count(0)
    assert hosts == {address.split("/")[2]} and all(REFUSED in text for text in problems)
    page.close()
