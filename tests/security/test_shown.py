"""What the page's server does not answer, and titles that would be HTML, or steer a terminal."""

import pytest
from fastapi.testclient import TestClient

from convrec.data.catalog import Catalog, Item
from convrec.project.errors import InputError
from convrec.service.app.server import hosts_of, listening, make_app
from convrec.service.recommender import Recommendation, RecommendedList
from tests.service.app.serving import make_service, serve
from tests.service.recommending import CATALOG, make_recommender

TITLE = "<img src=x onerror=\"document.title='owned'\">"
LOCAL = ("127.0.0.1", "localhost", "[::1]")
MODELS = {f"<b>{TITLE}</b>": make_recommender(0, Catalog([Item(TITLE, 1999), *CATALOG.items]))}
SERVICE = make_service(MODELS)


def _client(hosts=LOCAL) -> TestClient:
    return TestClient(make_app(SERVICE, has_page=True, hosts=hosts), base_url="http://127.0.0.1:8000")


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "127.0.0.1", "[::1]:8000", "[::1]"])
def test_the_machine_s_own_names_are_answered(host):
    assert _client().get("/api/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example:8000", "evil.example", "127.0.0.1.evil.example", "localhost@evil.example:1", "", "[::2]:8000"],
)
@pytest.mark.parametrize("path", ["/", "/api/models"])
def test_another_name_that_means_this_machine_is_refused(host, path):
    reply = _client().get(path, headers={"Host": host})
    assert reply.status_code == 400 and reply.text == "Invalid host header"


@pytest.mark.parametrize(
    ("host", "allowed", "restricted"),
    [("127.0.0.1", [], True), ("localhost", [], True), ("0.0.0.0", [], False), ("0.0.0.0", ["serve", "0.0.0.0"], True)],
)
def test_names_are_checked_where_the_server_is_this_machine_s_alone_or_names_are_given(host, allowed, restricted):
    try:
        with listening(host, 0) as listener:
            client = _client(hosts_of(listener, host, allowed))
    except InputError:
        pytest.skip(f"{host} cannot be bound here")
    hosts = ({"Host": f"{name}:8000"} for name in (host, "evil.example"))
    replies = [client.get("/api/models", headers=own).status_code for own in hosts]
    assert replies == [200, 400 if restricted else 200]
    own = [client.get("/api/models", headers={"Host": f"{name}:8000"}).status_code for name in ("localhost", *allowed)]
    assert set(own) == {200}


def test_no_address_and_no_host_name_are_refused():
    with pytest.raises(InputError, match="--host '': give an address"), listening("", 0):
        pass
    with listening("127.0.0.1", 0) as listener, pytest.raises(InputError, match="--allowed-host 'a:80': give a host"):
        hosts_of(listener, "127.0.0.1", ["a:80"])


@pytest.mark.slow  # of the tests in a browser, CI runs one
def test_a_title_in_html_is_shown_as_text(browser):
    with serve(make_service(MODELS)) as served:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{served.port}/")
        page.fill("#n", "16")
        page.fill("#words", TITLE.replace("img", "img class=said"))
        page.click("#say button[type=submit]")
        page.wait_for_selector(".item .title")
        assert f"{TITLE} (1999)" in page.locator(".item .title").all_inner_texts()
        assert page.locator("main img, main b").count() == 0 and page.title() == "convrec"
        page.close()


def test_a_title_does_not_steer_the_terminal():
    steering = "\x1b]0;owned\x07\x1b[31mHeat\u202e"
    shown = str(RecommendedList([Recommendation(1, steering, 1995)]))
    assert "Heat" in shown and not set(shown) & set("\x1b\x07\u202e")
