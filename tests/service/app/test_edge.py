"""The server over raw sockets: bodies without end."""

import pytest

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
