"""The page in headless Chromium, with two random models: what people do on it."""

import json
import re
import time
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from convrec.service.feedback import FeedbackRecorder, FeedbackStore
from tests.service.app.serving import make_service, serve
from tests.service.recommending import make_recommender

AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
TARGETS = "button, input, textarea, summary, [role=option]"
SMALL_TARGETS = """(targets) => [...document.querySelectorAll(targets)].filter((node) => node.checkVisibility())
  .filter((node) => Math.min(node.getBoundingClientRect().width, node.getBoundingClientRect().height) < 44)
  .map((node) => node.outerHTML)"""
SIZES = {390: 844, 1440: 900}
CHAMPION, CHALLENGER = "Model in use (version 1)", "New model (version 2)"


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('feedback')}/feedback.db"


@pytest.fixture(scope="module")
def recorder(database, tmp_path_factory) -> Iterator[FeedbackRecorder]:
    made = FeedbackRecorder(tmp_path_factory.mktemp("journal"), database)
    yield made
    made.close()


@pytest.fixture(scope="module")
def address(recorder):
    """The address of a server with champion and challenger."""
    with serve(make_service({CHAMPION: make_recommender(0), CHALLENGER: make_recommender(1)}, recorder)) as served:
        yield f"http://127.0.0.1:{served.port}/"


@pytest.fixture
def open_page(browser, address):
    """Open the page; afterwards, no error may be on its console, and it may have called no other host."""
    pages, problems, hosts = [], [], set()

    def opened(width=1440, scheme="light", address=address):
        page = browser.new_page(viewport={"width": width, "height": SIZES[width]}, color_scheme=scheme)
        pages.append(page)
        page.set_default_timeout(20_000)
        expect.set_options(timeout=20_000)
        page.on("console", lambda told: problems.append(told.text) if told.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
        page.questions = []  # without those of the list before the first message
        page.on("request", lambda request: page.questions.append(request) if _is_question(request) else None)
        page.goto(address)
        expect(page.locator("#models")).to_have_text(f"15 films · {CHAMPION} and {CHALLENGER}")
        return page

    yield opened
    for page in pages:
        page.close()
    assert problems == [] and hosts <= {address.split("/")[2]}


def _is_question(request):
    return "recommend" in request.url and not request.post_data_json["is_start"]


def _enter(field, text):
    field.fill(text)
    field.press("Enter")


def _send(page, text):
    _enter(page.get_by_label("Your message"), text)
    _wait_for_answer(page)


def _wait_for_answer(page):
    expect(page.locator("#turns li.assistant")).not_to_have_count(0)
    expect(page.locator("#status")).not_to_contain_text("Finding")
    expect(page.locator(".item")).not_to_have_count(0)


def _open_filters(page):
    if not page.locator("#filters").evaluate("(node) => node.open"):
        page.locator("summary").click()


def _check(page):
    """Check accessibility, the size of what is touched, and that nothing is wider than the window."""
    assert [(found["id"], found["nodes"]) for found in Axe().run(page, options=AXE).response["violations"]] == []
    assert page.evaluate(SMALL_TARGETS, TARGETS) == []
    assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1440, "dark")])
def test_every_state_is_accessible(open_page, width, scheme):
    page = open_page(width, scheme)
    dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert dark == (scheme == "dark")
    _check(page)
    _send(page, "I loved Heat")
    _check(page)
    talk, answer = (page.locator(name).bounding_box() for name in ("#talk", "#answer"))
    assert (answer["x"] > talk["x"] + talk["width"]) == (width == 1440)
    _open_filters(page)
    page.get_by_role("combobox", name="Never these").press_sequentially("du")
    expect(page.get_by_role("option")).to_have_text(["Dune (1984)", "Dune (2021)"])
    _check(page)
    _enter(page.get_by_role("combobox", name="Never these"), "Haet")
    expect(page.get_by_role("button", name="Use Heat (1975)")).to_be_visible()
    _check(page)
    page.locator(".list:not(.other) [data-event=accepted]").first.click()
    expect(page.locator("#toast")).to_contain_text("You like ")
    _check(page)
    page.get_by_role("button", name="Edit message 1").click()
    _check(page)
    page.get_by_role("button", name="Reset").click()
    _send(page, "only sci-fi like Heat, maybe no crime, no subtitles, nothing before 2000")
    for text in ("like Heat", "no crime?", "no subtitles", "Only 1 of 15 films fits."):
        expect(page.locator("#answer")).to_contain_text(text)
    _check(page)
    page.get_by_role("button", name="Drop “since 2000” to see 2").click()
    expect(page.locator("[data-state=removed]")).to_have_text("since 2000 +")
    _check(page)


def test_an_example_gives_two_lists_with_reasons_and_differences(open_page):
    page = open_page()
    examples = page.locator("#examples button")
    expect(examples).to_have_count(3)
    example = examples.first.inner_text()
    examples.first.click()
    _wait_for_answer(page)
    expect(page.locator("#examples")).to_be_hidden()
    expect(page.locator("#turns li.user p")).to_have_text(example)
    lists = [page.get_by_role("region", name=name).locator(".item") for name in (CHAMPION, CHALLENGER)]
    titles = [own.locator(".title").all_inner_texts() for own in lists]
    assert [len(own) for own in titles] == [10, 10]
    for own, other, items in ((titles[0], titles[1], lists[0]), (titles[1], titles[0], lists[1])):
        badges = [item.locator(".badge").all_inner_texts() for item in items.all()]
        for rank, (title, badge) in enumerate(zip(own, badges, strict=True), start=1):
            place = other.index(title) + 1 if title in other else None
            texts = {None: ["Only in this list"], rank: []}  # no badge for the same rank
            assert badge == texts.get(place, [f"Rank {place} in the other list"])
    both = len(set(titles[0]) & set(titles[1]))
    expect(page.locator("#status")).to_contain_text(f"In both lists: {both} of 10, ")
    assert any(text.startswith("Like ") for text in page.locator(".reason").all_inner_texts())
    expect(page.get_by_text("computed from the catalog, your messages")).to_be_visible()


def test_the_first_view_says_what_is_read_and_has_a_list_without_feedback(open_page):
    page = open_page()
    expect(page.locator("#status")).to_contain_text("Before your first message: ")
    expect(page.locator(".list").first.locator(".item")).to_have_count(10)
    expect(page.locator("[data-event]")).to_have_count(0)
    expect(page.get_by_text("I read titles, years and genres, and keep to limits such as “no ")).to_be_visible()
    for name in ("Copy link", "Reset"):
        expect(page.get_by_role("button", name=name)).to_be_hidden()


def test_a_wish_is_switched_off_and_is_on_when_it_is_stated_again(open_page):
    page = open_page()
    _send(page, "no crime please, and no subtitles")
    expect(page.locator("#wishes")).to_contain_text("I understood:")
    expect(page.locator("#wishes")).to_contain_text("Not used: no subtitles")
    chip = page.get_by_role("button", name="no crime", exact=True)
    for is_on in ("false", "true", "false"):
        chip.click()
        expect(chip).to_have_attribute("aria-pressed", is_on)
        expect(chip).to_be_focused()
    assert json.loads(page.questions[-1].post_data)["choices"] == [{"no crime": False}]
    _send(page, "something newer than Heat")
    expect(chip).to_have_attribute("aria-pressed", "false")
    _send(page, "I said no crime")
    expect(chip).to_have_attribute("aria-pressed", "true")
    chip.click()
    expect(chip).to_have_attribute("aria-pressed", "false")
    page.get_by_role("button", name="Show the list for message 1").click()
    expect(page.locator("#wishes")).to_contain_text("I understood (after message 1):")
    expect(page.locator("#wishes button")).to_have_count(0)
    page.get_by_role("button", name="Reset").click()
    expect(page.locator("#wishes")).to_be_hidden()


def test_a_doubtful_wish_is_asked_back_and_kept_with_one_key(open_page):
    page = open_page()
    _send(page, "maybe no crime")
    for text in ("Did you mean:", "no crime?", "It is not applied unless you choose it."):
        expect(page.locator(".asked")).to_contain_text(text)
    chip = page.get_by_role("list", name="Did you mean").get_by_role("button", name="no crime?")
    expect(chip).to_have_attribute("aria-pressed", "false")
    chip.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".asked")).to_have_count(0)
    kept = page.get_by_role("list", name="I understood").get_by_role("button", name="no crime")
    expect(kept).to_have_attribute("aria-pressed", "true")
    expect(kept).to_be_focused()
    page.keyboard.press("Enter")  # it is doubtful again
    expect(page.locator(".asked")).to_be_visible()


def test_yes_or_no_answers_the_question(open_page):
    page = open_page()
    for words, intro in (("yes", "I understood:"), ("No!", "I understood:")):
        _send(page, "maybe no crime")
        expect(page.locator(".asked")).to_be_visible()
        turns = page.locator("#turns li.user").count()
        _send(page, words)
        expect(page.locator(".asked")).to_have_count(0)
        expect(page.locator("#wishes")).to_contain_text(intro)
        assert page.locator("#turns li.user").count() == turns
        page.get_by_role("button", name="Reset").click()
    _send(page, "yes")
    expect(page.locator("#turns li.user p")).to_have_text("yes")


def test_the_next_message_refers_to_the_list_and_its_thumbs(open_page):
    page = open_page()
    _send(page, "I loved Heat")
    items = page.get_by_role("region", name=CHAMPION).locator(".item")
    first, second, third = (title.rpartition(" (")[0] for title in items.locator(".title").all_inner_texts()[:3])
    items.nth(0).get_by_role("button", name="Not for me: ").click()
    items.nth(1).get_by_role("button", name="I like ").click()
    expect(page.locator("#toast")).to_contain_text(f"You like {second}")
    _send(page, "not the third one")
    for text in (f"not {first}", f"like {second}", f"not {third}"):
        expect(page.locator("#wishes")).to_contain_text(text)
    expect(items.first).to_be_visible()
    left = [title.rpartition(" (")[0] for title in items.locator(".title").all_inner_texts()]
    assert not {first, third} & set(left)


def test_wishes_of_both_models_are_shown_once(open_page):
    page = open_page()

    def answer_differently(route):
        answer = route.fetch().json()
        own = (
            [("crime", "preferred"), ("drama", "unknown")],
            [("crime", "unweighted"), ("drama", "unknown"), ("en", "kept")],
        )
        for model, wishes in zip(answer["models"], own, strict=True):
            model["wishes"] = [{"text": text, "state": state, "is_chosen": False} for text, state in wishes]
        route.fulfill(json=answer)

    page.route("**/api/recommend", answer_differently)
    _send(page, "a film")
    expect(page.locator("#wishes .text")).to_have_text(
        [f"crime (preferred) ({CHALLENGER}: without weight)", f"en ({CHAMPION}: not read)"]
    )
    expect(page.locator("#wishes > .hint")).to_have_text(["Not used: drama"])


def test_one_item_is_counted_in_plain_words(open_page):
    page = open_page()

    def answer_with_one(route):
        answer = route.fetch().json()
        route.fulfill(json={**answer, "models": answer["models"][:1]})

    page.get_by_label("How many").fill("1")
    _send(page, "a film")
    expect(page.locator("#status")).to_have_text(re.compile(r"^In both lists: [01] of 1, "))
    page.route("**/api/recommend", answer_with_one)
    _send(page, "another")
    expect(page.locator("#status")).to_have_text("1 of 15 films")


def test_a_short_list_says_in_one_sentence_what_to_drop(open_page):
    page = open_page()
    _send(page, "only sci-fi, nothing before 2000")
    expect(page.locator("#status")).to_have_text(re.compile(r"^Only 1 of 15 films fits\."))
    page.get_by_role("button", name="Drop “only sci-fi” to see 4").click()
    expect(page.locator("#status")).to_have_text(re.compile(r"^Only 4 of 15 films fit\."))
    expect(page.locator("#answer-heading")).to_be_focused()
    _enter(page.get_by_role("combobox", name="Only these"), "Up (1981)")
    expect(page.locator("#status")).to_have_text(re.compile(r"^Only 1 of 15 films fits\."))  # without "since 2000"
    _enter(page.get_by_label("Your message"), "I loved Up")
    expect(page.locator("#status")).to_have_text(re.compile(r"^None of 15 films fits\."))
    page.get_by_role("button", name="Drop “Only these” to see 4", exact=True).click()
    expect(page.locator(".list").first.locator(".item")).to_have_count(4)
    expect(page.locator("#num-filters")).to_be_empty()


@pytest.mark.parametrize("typed", ["0", "2000", "", "1.5", "ten"])
def test_an_invalid_length_keeps_the_message_and_says_what_is_valid(open_page, typed):
    page = open_page(390)
    _open_filters(page)
    page.get_by_label("How many").press("Control+a")
    page.get_by_label("How many").press_sequentially(typed or "\b")
    _enter(page.get_by_label("Your message"), "a film")
    expect(page.get_by_label("How many")).to_be_focused()
    expect(page.get_by_role("alert").filter(has_text="Enter a whole number from 1 to 15.")).to_be_in_viewport()
    expect(page.locator("#toast")).to_contain_text("Your message was not sent")
    expect(page.get_by_label("Your message")).to_have_value("a film")
    assert page.questions == []
    page.get_by_label("How many").fill("3")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".list:visible .item")).to_have_count(3)
    expect(page.get_by_label("Your message")).to_have_value("")


def test_a_link_opens_the_same_conversation_and_is_not_sent(open_page):
    page = open_page()
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    _send(page, "no crime, bitte – 爱情")
    page.locator("[data-wish='no crime']").click()
    expect(page.locator("[data-state=removed]")).to_be_visible()
    _send(page, "maybe no sci-fi")
    page.get_by_label("How many").fill("4")
    page.keyboard.press("Tab")
    _enter(page.get_by_role("combobox", name="Never these"), "Up (1981)")
    expect(page.locator(".list").first.locator(".item")).to_have_count(4)
    expect(page.locator("#lists")).not_to_contain_text("Up (1981)")
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#toast")).to_contain_text("Link copied. It contains your messages")
    link = page.evaluate("window.copied")
    opened = open_page(address=link)
    expect(opened.locator("#turns li.assistant")).to_have_count(2)
    _wait_for_answer(opened)
    for part in ("#lists", "#wishes", "#num-filters", "#deny-options ~ .chips", "#turns li:nth-child(n + 3)"):
        assert opened.locator(part).all_inner_texts() == page.locator(part).all_inner_texts()
    expect(opened.get_by_label("How many")).to_have_value("4")
    (question,) = opened.questions  # the last message alone is asked
    assert question.post_data == page.questions[-1].post_data
    opened.get_by_role("button", name="Show the list for message 1").click()
    expect(opened.locator("#turns li.assistant").first).to_contain_text(" more")
    assert len(opened.questions) == 2 and opened.url == link
    assert not any(link.split("#")[1] in f"{asked.url}{asked.all_headers()}" for asked in opened.questions)
    _send(opened, "something newer")
    assert opened.url == link.split("#")[0]  # the conversation is another one now
    opened.evaluate("(link) => { location.href = link.slice(0, -5); }", link)
    expect(opened.locator("#status")).to_have_text("This link is damaged. Ask for a new one.")
    expect(opened.locator("#turns li.user")).to_have_count(3)


def test_a_link_is_bounded(open_page):
    page = open_page()
    throws = """async ([turns, length]) => {
      const { linkTo } = await import("./share.js");
      const turn = { content: "x".repeat(length), choices: {} };
      try { linkTo({ turns: Array(turns).fill(turn), n: "10", deny: [], allow: [] }); } catch { return true; }
      return false;
    }"""
    assert [page.evaluate(throws, sizes) for sizes in ([100, 500], [101, 1], [1, 80_000])] == [False, True, True]


def test_a_mistyped_title_is_refused_at_the_field_and_asks_no_model(open_page):
    page = open_page()
    _send(page, "a film")
    asked = len(page.questions)
    _enter(page.get_by_role("combobox", name="Never these"), "Haet")
    expect(page.get_by_role("alert").filter(has_text="“Haet” is not in the catalog.")).to_be_visible()
    assert len(page.questions) == asked
    page.get_by_role("button", name="Use Heat (1975)").click()
    expect(page.get_by_role("button", name="Allow again: Heat (1975)")).to_be_visible()
    expect(page.locator(".item .title", has_text="Heat (1975)")).to_have_count(0)
    _enter(page.get_by_label("How many"), "0")
    expect(page.get_by_role("alert").filter(has_text="Enter a whole number from 1 to 15.")).to_be_visible()
    assert len(page.questions) == asked + 1
    _enter(page.locator("#words"), "another film")
    expect(page.locator("#words")).to_have_value("another film")  # it is not lost
    expect(page.locator("#turns li.user")).to_have_count(1)
    assert len(page.questions) == asked + 1
    page.get_by_role("button", name="Reset").click()
    expect(page.locator("#status")).to_contain_text("Before your first message: ")
    for gone in ("#turns li", ".chips li", "#error p"):
        expect(page.locator(gone)).to_have_count(0)
    expect(page.get_by_label("How many")).to_have_value("10")


def test_the_keyboard_alone_is_enough(open_page):
    page = open_page()

    def tab_to(selector):
        for _ in range(80):
            page.keyboard.press("Tab")
            if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"{selector} cannot be reached")

    tab_to("#examples li:nth-child(2) button")
    page.keyboard.press("Enter")
    _wait_for_answer(page)
    tab_to("#deny")
    page.keyboard.type("dune")
    expect(page.get_by_role("option")).to_have_count(2)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("option", name="Dune (2021)")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Allow again: Dune (2021)")).to_be_visible()
    _wait_for_answer(page)
    tab_to(".items [data-never]")
    page.keyboard.press("Enter")
    expect(page.locator(".list:first-child .item:first-child [data-never]")).to_be_focused()
    tab_to("#reset")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Your message")).to_be_focused()


def test_feedback_is_recorded_and_can_be_withdrawn(open_page, recorder, database):
    page = open_page()
    _send(page, "I loved Heat")
    item = page.get_by_role("region", name=CHALLENGER).locator(".item").nth(2)
    like, dislike = item.get_by_role("button", name="I like "), item.get_by_role("button", name="Not for me: ")
    for made, other in ((like, dislike), (dislike, like)):
        made.click()
        expect(made).to_have_attribute("aria-pressed", "true")
        expect(other).to_have_attribute("aria-pressed", "false")
    dislike.click()
    expect(dislike).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#toast")).to_contain_text("removed")
    item.get_by_role("button", name="Never ").click()
    expect(page.locator("#num-filters")).to_have_text("(1)")
    _wait_for_answer(page)
    while recorder.backlog:
        time.sleep(0.05)
    rows = FeedbackStore(database).outcomes().sort("time").to_dicts()
    row = [row for row in rows if row["hidden"]][-1]
    assert (row["list"], row["rank"], row["accepted"], row["rejected"]) == (CHALLENGER, 3, False, False)
    expect(page.locator("#saved")).to_have_text(re.compile("Your messages are not saved"))


def test_a_server_that_fails_is_reported_and_can_be_asked_again(browser, address):
    page = browser.new_page()
    page.goto(address)
    page.route("**/api/recommend", lambda route: route.abort())
    _enter(page.get_by_label("Your message"), "I loved Heat")
    expect(page.get_by_role("alert").filter(has_text="The server does not answer.")).to_be_visible()
    page.unroute("**/api/recommend")
    page.get_by_role("button", name="Try again").click()
    _wait_for_answer(page)
    expect(page.locator("#error")).to_be_empty()
    page.route("**/feedback", lambda route: route.abort())
    page.get_by_role("button", name="I like ").first.click()
    expect(page.locator("#toast")).to_have_text("The feedback was not saved: the server does not answer.")
    expect(page.locator("[aria-pressed=true][data-event]")).to_have_count(0)
    page.close()


def test_on_a_phone_the_answer_is_visible_after_send(open_page):
    page = open_page(390)
    assert not page.locator("#filters").evaluate("(node) => node.open")
    for text in ("I loved Heat", "something newer"):
        _send(page, text)
        expect(page.locator(".list:not(.other) .item").first).to_be_in_viewport(ratio=1)
    expect(page.locator(".list:visible")).to_have_count(1)
    page.get_by_role("button", name=CHALLENGER, exact=True).click()
    expect(page.locator(".list:visible")).to_have_attribute("aria-labelledby", "model-1")
    page.get_by_role("button", name="Reply").click()
    expect(page.get_by_label("Your message")).to_be_in_viewport()
    expect(page.get_by_label("Your message")).to_be_focused()


def test_answers_stay_in_the_conversation(open_page):
    page = open_page()
    _send(page, "I loved Heat")
    first = page.locator(".item .title").all_inner_texts()
    page.locator("[data-event=accepted]").first.click()
    expect(page.locator("[aria-pressed=true][data-event=accepted]")).to_have_count(1)
    _send(page, "something newer")
    expect(page.locator("#turns li")).to_have_count(4)
    roles = [message["role"] for message in json.loads(page.questions[-1].post_data)["messages"]]
    assert roles == ["user", "assistant", "user"]
    expect(page.locator("#turns li.assistant").first).to_contain_text(", ".join(first[:3]) + " and 7 more")
    page.get_by_role("button", name="Show the list for message 1").click()
    assert page.locator(".item .title").all_inner_texts() == first
    expect(page.locator("[aria-pressed=true][data-event=accepted]")).to_have_count(1)

    page.get_by_role("button", name="Edit message 1").click()
    page.get_by_label("Text of message 1").fill("I loved Up")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#turns li")).to_have_count(3)
    _wait_for_answer(page)
    expect(page.locator("#turns li p").first).to_have_text("I loved Up")
    page.get_by_role("button", name="Remove message 2").click()
    _wait_for_answer(page)
    expect(page.locator("#turns li")).to_have_count(2)
