"""Lists by vLLM servers: vLLM's own server on a CPU, and faults of servers by a stand-in."""

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from convrec.project.errors import InputError, Unavailable
from convrec.registry.recommenders import open_recommender
from convrec.service import vllm_client
from convrec.service.app.service import Limits
from convrec.service.served import ServedModel
from convrec.service.vllm_client import ServerDecoder, check_url
from tests.service.app.process import Service, running_service
from tests.service.app.serving import answer, make_service, serve
from tests.service.vllm_stand_in import RECOMMENDER, StandIn
from tests.small_project import ROOT

NAME = "convrec-1234"
TRANSLATOR = RECOMMENDER.translator
QUESTIONS = [
    {"conversation": "a film with heists", "n": 4},
    {"conversation": "I loved Heat and Her", "n": 3},
    {"conversation": "please " * 40, "n": 5, "deny": ["Up (1981)", "Dune"]},
    {"conversation": "space", "n": 2, "allow": ["Alien", "Tenet", "Casablanca"]},
    {"conversation": "Up", "n": 1},
    {"conversation": "a film", "n": 13},
]


@pytest.fixture
def stand_ins() -> Iterator[Callable[..., StandIn]]:
    """Starts stand-ins, which are stopped after the test."""
    made: list[StandIn] = []

    def start(name: str = NAME, port: int = 0) -> StandIn:
        made.append(StandIn(name, port))
        return made[-1]

    yield start
    for one in made:
        one.stop()


@pytest.fixture
def decoders() -> Iterator[Callable[..., ServerDecoder]]:
    """Makes decoders on servers, which are closed after the test."""
    made: list[ServerDecoder] = []

    def make(*servers: StandIn, name: str = NAME) -> ServerDecoder:
        end, penalty = TRANSLATOR.tokenizer.eos_token_id, RECOMMENDER.settings.repetition_penalty
        made.append(ServerDecoder([one.url for one in servers], name, TRANSLATOR.trie, end, penalty, 0.02))
        return made[-1]

    yield make
    for one in made:
        one.close()


def _prepare(conversation="a film", n=3, **options):
    (asked,) = TRANSLATOR.prepare([conversation], n, **options)
    return asked


def _lines(tokens) -> list[str]:
    return [str(item) for item in TRANSLATOR.items(tokens)]


def _wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _expected(question, recommender=RECOMMENDER) -> list[str]:
    options = {name: value for name, value in question.items() if name != "conversation"}
    return [str(row) for row in recommender.recommend(question["conversation"], **options)]


def test_requests_are_spread_over_servers_and_give_the_lists_of_the_recommender(stand_ins, decoders, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    servers = [stand_ins(), stand_ins(), stand_ins()]
    decoder = decoders(*servers)
    for server in servers:
        server.may_answer.clear()
    futures = [decoder.submit(_prepare(**question)) for question in QUESTIONS]
    _wait(lambda: [server.begun for server in servers] == [2, 2, 2])
    assert decoder.num_running == 6 and decoder.num_waiting == 0
    for server in servers:
        server.may_answer.set()
    assert [_lines(future.result(30)) for future in futures] == [_expected(question) for question in QUESTIONS]
    assert decoder.num_running == 0 and servers[0].headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("fault", ["status", "cut", "stopped", "other version"])
def test_a_request_that_a_server_fails_on_is_retried_on_another_one(stand_ins, decoders, caplog, fault):
    first, second = stand_ins(), stand_ins()
    decoder = decoders(first, second)
    if fault == "status":
        first.status = 500
    elif fault == "cut":
        first.is_cut = True
    elif fault == "stopped":
        first.stop()
    else:
        first.name = "convrec-other"
    for _ in range(4):
        assert len(_lines(decoder.submit(_prepare()).result(30))) == 3
    assert second.begun >= 1 and decoder.is_alive
    _wait(lambda: f"{first.url} is left out: " in caplog.text)


def test_without_a_server_requests_fail_until_one_is_back(stand_ins, decoders):
    server = stand_ins()
    decoder = decoders(server)
    server.stop()
    _wait(lambda: not decoder.is_alive)
    with pytest.raises(Unavailable, match=rf"no vLLM server serves {NAME} \({server.url}: .*\); start `convrec vllm"):
        decoder.submit(_prepare()).result(30)
    stand_ins(port=server.port)
    _wait(lambda: decoder.is_alive)
    assert len(_lines(decoder.submit(_prepare()).result(30))) == 3


def test_requests_of_a_server_that_is_lost_go_to_another_one(stand_ins, decoders, monkeypatch):
    """It keeps its connections and answers nothing, as a machine without power."""
    first, second = stand_ins(), stand_ins()
    decoder = decoders(first, second)
    first.may_answer.clear()
    second.may_answer.clear()
    futures = [decoder.submit(_prepare()) for _ in range(2)]
    _wait(lambda: (first.begun, second.begun) == (1, 1))
    monkeypatch.setattr(vllm_client, "_ANSWER_SECONDS", 1.5)
    first.may_check.clear()
    second.may_answer.set()
    assert [len(_lines(future.result(30))) for future in futures] == [3, 3]
    assert second.begun == 2


def test_a_cancelled_request_leaves_its_server_and_others_are_finished(stand_ins, decoders):
    server = stand_ins()
    decoder = decoders(server)
    server.may_answer.clear()
    future = decoder.submit(_prepare())
    _wait(lambda: server.begun == 1)
    assert future.cancel()
    _wait(lambda: server.left == 1)
    assert decoder.num_running == 0 and decoder.is_alive
    future = decoder.submit(_prepare())
    _wait(lambda: server.begun == 2)
    closing = threading.Thread(target=decoder.close)
    closing.start()
    server.may_answer.set()
    closing.join(30)
    assert len(_lines(future.result(0))) == 3, "closing finishes what was asked"
    with pytest.raises(RuntimeError, match="the engine is closed"):
        decoder.submit(_prepare())


def test_only_servers_of_the_version_are_asked(stand_ins, decoders):
    other, own = stand_ins("convrec-other"), stand_ins()
    with pytest.raises(Unavailable, match=f"{other.url}: it serves convrec-other, not {NAME}"):
        decoders(other)
    decoder = decoders(other, own)
    for _ in range(3):
        decoder.submit(_prepare()).result(30)
    assert (other.begun, own.begun) == (0, 3)
    own.may_check.clear()
    own.status = 400
    with pytest.raises(RuntimeError, match="rejects the request: status 400, .*told to fail"):
        decoder.submit(_prepare()).result(30)
    assert own.begun == 4


def test_the_service_is_not_ready_and_answers_503_without_a_server(stand_ins, decoders):
    server = stand_ins()
    decoder = decoders(server)
    service = make_service({"champion": ServedModel("1", TRANSLATOR, decoder, None)}, limits=Limits())
    with serve(service) as running:
        assert running.get("/ready")[0] == 200
        server.stop()
        with running.ask(conversation="a film", n=2) as connection:
            status, body = answer(connection)
        assert status == 503 and "no vLLM server serves" in body["error"]
        _wait(lambda: running.get("/ready")[0] == 503)


def test_the_address_of_a_server_may_end_as_openai_s():
    given = ("https://gpu1/", "http://[::1]:8001/v1/", "http://gateway/gpu1/v1")
    assert [check_url(url) for url in given] == ["https://gpu1", "http://[::1]:8001", "http://gateway/gpu1"]


@pytest.mark.parametrize(
    "given",
    ["gpu1:8001", "ftp://gpu1", "http://", "http://gpu1:99999", "http://gpu1:x", "http://a b", "http://a?b=1"],
)
def test_what_is_no_address_is_rejected(given):
    with pytest.raises(InputError, match="--vllm-server .*: not the address of a server; give one such as http://"):
        check_url(given)
    with pytest.raises(InputError, match="--vllm-server: the address of gpu1 holds a password") as rejected:
        check_url("http://me:secret@gpu1:8001")
    assert "secret" not in str(rejected.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--vllm-server", "http://gpu1:8001"), "--vllm-server http://gpu1:8001: give --engine vllm, too"),
        (("--engine", "vllm", "--vllm-server", "gpu1"), "--vllm-server 'gpu1': not the address of a server"),
    ],
)
def test_the_command_rejects_what_it_cannot_use(cli, options, words):
    ended = cli("serve", "--port", "0", "--feedback", "none", *options)
    assert ended.status == 2 and words in ended.err


def test_a_server_of_rollouts_rejects_a_key_which_trl_would_not_send(cli, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    ended = cli("vllm-server", "--training")
    assert ended.status == 2 and "sends no key; unset VLLM_API_KEY" in ended.err


class VllmServer:
    """`convrec vllm-server` as a process with vLLM's CPU build, in a session of its own."""

    def __init__(self, python: str, folder: Path, port: int):
        options = ["--model", "model", "--port", str(port), "--gpu-share", "0.1", "--batch-size", "4"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "VLLM_CPU_KVCACHE_SPACE": "1"}
        self.url, self.log = f"http://127.0.0.1:{port}", folder / f"vllm-{time.monotonic_ns()}.log"
        command = [python, "-m", "convrec.cli", "vllm-server", *options]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + 300
        while not self._answers():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-4000:]
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/v1/models", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def signal(self, number: int) -> bool:
        """Send a signal to its processes; return whether there is one."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True


@contextmanager
def _vllm_server(python: str, folder: Path, port: int) -> Iterator[VllmServer]:
    server = VllmServer(python, folder, port)
    try:
        server.wait()
        yield server
    finally:
        server.signal(signal.SIGKILL)
        server.process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _recommended(service: Service, question) -> list[str]:
    reply = service.client.post("/recommend", json=question)
    assert reply.status_code == 200, reply.text
    rows = reply.json()["recommendations"]
    return [row["title"] + (f" ({row['year']})" if row["year"] else "") for row in rows]


def test_lists_of_vllm_s_server_are_those_of_the_recommender(gpu_python, project, monkeypatch):
    """Also after the server was killed and started again; until then the service answers 503."""
    monkeypatch.chdir(project)
    recommender, port = open_recommender("model"), _free_port()
    expected = [_expected(question, recommender) for question in QUESTIONS]
    options = ("--model", "model", "--engine", "vllm", "--vllm-server", f"http://127.0.0.1:{port}")
    with (
        _vllm_server(gpu_python, project, port) as server,
        running_service(project, "--feedback", "none", *options) as service,
    ):
        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            assert list(pool.map(partial(_recommended, service), QUESTIONS)) == expected
        server.signal(signal.SIGKILL)
        server.process.wait()
        reply = service.ask()
        assert reply.status_code == 503 and "no vLLM server serves convrec-" in reply.json()["error"]
        _wait(lambda: service.client.get("/ready").status_code == 503)
        with _vllm_server(gpu_python, project, port) as again:
            _wait(lambda: service.client.get("/ready").status_code == 200)
            assert [_recommended(service, question) for question in QUESTIONS] == expected
            _reject_lists_that_cannot_be_met(again)
            again.process.send_signal(signal.SIGTERM)
            assert again.process.wait(60) == 0
            _wait(lambda: not again.signal(0))
    assert re.search(r"convrec-[0-9a-f]{16}", service.log.read_text())


def _reject_lists_that_cannot_be_met(server: VllmServer) -> None:
    """Requests that would stop the engine are answered with an error, and the server goes on."""
    (model,) = httpx.get(f"{server.url}/v1/models").json()["data"]
    for length, words in ((0, "catalog_list_length = 0"), (999, "a list of 999 items is asked for")):
        body = {"model": model["id"], "prompt": [1], "vllm_xargs": {"catalog_list_length": length}}
        reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30)
        assert reply.status_code == 400 and words in reply.text
    assert httpx.get(f"{server.url}/health", timeout=30).status_code == 200
