"""The server over raw sockets: bodies without end, and probes."""

import pytest

from convrec.service.app import edge
from convrec.service.app.keys import Keys, new_key
from convrec.service.app.service import Limits
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
    told = {"error": "a request is limited to 1,000,000 bytes; shorten it"}
    assert answer(served.send(request("POST /api/recommend", CHUNK * 16, *headers))) == (413, told)
    unsent = served.send(request("POST /api/recommend", b"", "Content-Length: 1000001"))
    assert answer(unsent)[0] == 413, "before the body is sent"


def test_a_body_in_chunks_of_no_told_length_is_a_question(served):
    question = b'{"conversation": "I loved Heat", "n": 2}'
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (question[:9], question[9:], b""))
    headers = [CHUNKED, "Content-Type: application/json"]
    status, answered = answer(served.send(request("POST /api/recommend", body, *headers)))
    assert status == 200 and len(answered["models"][0]["recommendations"]) == 2


def test_bodies_that_do_not_end_take_no_more_memory_than_the_limits_allow(monkeypatch):
    """Bodies of any number were read at the same time, and stayed until their clients had left."""
    monkeypatch.setattr(edge, "_BODY_SECONDS", 0.5)
    unfinished = request("POST /api/recommend", b"{", "Content-Length: 999000", "Content-Type: application/json")
    with serve(make_service({"champion": make_recommender()}, limits=Limits(max_requests=3))) as running:
        asked = [running.send(unfinished) for _ in range(9)]
        answers = [answer(connection) for connection in asked]
        late = (408, {"error": "the body has not arrived within 0.5 s"})
        many = (429, {"error": "too many requests are arriving; try again later"})
        assert sorted(answers, key=str) == [late] * 3 + [many] * 6
        assert answer(running.ask(conversation="a film", n=1))[0] == 200


def test_no_body_is_read_without_a_key(tmp_path):
    new_key(tmp_path / "keys", "shop")
    service = make_service({"champion": make_recommender()})
    with serve(service, has_page=False, keys=Keys(tmp_path / "keys")) as running:
        assert answer(running.send(request("POST /recommend", b"{", "Content-Length: 999000")))[0] == 401
        page = running.text("/metrics").decode()
    assert 'convrec_requests_total{path="/recommend",status="401"} 1.0' in page


def test_a_compressed_body_is_refused_by_its_encoding(served):
    asked = request("POST /api/recommend", b"", "Content-Encoding: gzip", "Content-Length: 9")
    told = {"error": "Content-Encoding: gzip is not supported; send the body uncompressed"}
    assert answer(served.send(asked)) == (415, told)


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
@pytest.mark.parametrize("probe", ["HEAD {} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close", "GET {} HTTP/1.0"])
def test_probes_are_answered(path, probe):
    with (
        serve(make_service({"champion": make_recommender()}), hosts=("127.0.0.1", "localhost")) as running,
        running.send(f"{probe.format(path)}\r\n\r\n".encode()) as connection,
    ):
        head, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
    assert head.split()[1] == b"200" and bool(body) == probe.startswith("GET")
