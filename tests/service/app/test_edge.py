"""The server over raw sockets: bodies without end, slow ones, connections that say nothing."""

import time

import pytest

from convrec.service.app import edge
from tests.service.app.serving import answer, make_service, request, serve
from tests.service.recommending import make_recommender

CHUNK = b"10000\r\n" + b" " * 65536 + b"\r\n"
CHUNKED = "Transfer-Encoding: chunked"


@pytest.fixture(scope="module")
def served():
    with serve(make_service({"champion": make_recommender()})) as running:
        yield running


@pytest.mark.parametrize("headers", [["Content-Length: 5", CHUNKED], [CHUNKED, "Content-Length: 5"], [CHUNKED]])
def test_bytes_are_counted_whatever_the_headers_say(served, headers):
    sent = 0
    with served.send(request("POST /api/recommend", b"", *headers)) as connection:
        try:
            for _ in range(2000):  # 131 MB
                connection.sendall(CHUNK)
                sent += len(CHUNK)
        except ConnectionError:
            pass
        assert sent < 20_000_000, "the server stops reading; the rest is in the buffers of the connection"
    with served.send(request("POST /api/recommend", CHUNK * 16, *headers)) as connection:
        assert answer(connection) == (413, {"error": "a request is limited to 1,000,000 bytes; shorten it"})
    with served.send(request("POST /api/recommend", b"", "Content-Length: 1000001")) as connection:
        assert answer(connection)[0] == 413, "before the body is sent"


def test_a_body_in_chunks_of_no_told_length_is_a_question(served):
    question = b'{"conversation": "I loved Heat", "n": 2}'
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (question[:9], question[9:], b""))
    headers = [CHUNKED, "Content-Type: application/json"]
    with served.send(request("POST /api/recommend", body, *headers)) as connection:
        status, answered = answer(connection)
    assert status == 200 and len(answered["models"][0]["recommendations"]) == 2


def test_slow_bodies_are_closed_and_keep_nobody_waiting(served, monkeypatch):
    monkeypatch.setattr(edge, "BODY_SECONDS", 0.5)
    slow = [served.send(request("POST /api/recommend", b"{", "Content-Length: 900")) for _ in range(300)]
    assert served.get("/api/models")[0] == 200
    for connection in slow:
        with connection:
            assert answer(connection) == (408, {"error": "the request did not arrive within 0.5 s; send it again"})
    assert served.get("/api/models")[0] == 200


def test_a_body_that_trickles_has_the_same_time(served, monkeypatch):
    monkeypatch.setattr(edge, "BODY_SECONDS", 0.3)
    with served.send(request("POST /api/recommend", b"{", "Content-Length: 900")) as connection:
        connection.settimeout(0.01)
        answered = b""
        start = time.monotonic()
        while not answered and time.monotonic() < start + 20:
            try:
                connection.sendall(b" ")
                answered = connection.recv(1000)
            except TimeoutError:
                pass
    assert answered.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("begun", [b"", b"GET /api/mod", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HTTP"])
def test_a_request_that_is_never_whole_is_closed(served, monkeypatch, begun):
    monkeypatch.setattr(edge, "HEAD_SECONDS", 0.2)
    with served.send(begun) as connection:
        answered = b"".join(iter(lambda: connection.recv(65536), b""))  # until the server closes it
    assert answered.count(b"HTTP/1.1 200") == begun.count(b"\r\n\r\n")
