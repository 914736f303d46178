"""Lists by a vLLM server: vLLM's own on a CPU, and faults of servers by a stand-in."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from convrec.generation.engine import TokenIds
from convrec.project.errors import InputError, Unavailable
from convrec.registry.recommenders import open_recommender
from convrec.service import vllm_client
from convrec.service.app.service import Limits
from convrec.service.served import ServedModel
from convrec.service.vllm_client import ServerDecoder, check_url
from tests.registry.tracking.server import free_port
from tests.service.app.process import Service, running_service
from tests.service.app.serving import answer, make_service, serve
from tests.service.feedback.conftest import until
from tests.service.recommending import SETTINGS
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
def stand_in() -> Iterator[StandIn]:
    made = StandIn(NAME)
    yield made
    made.stop()


@pytest.fixture
def decoder(stand_in, monkeypatch) -> ServerDecoder:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    return _decoder(stand_in)


def _decoder(server: StandIn) -> ServerDecoder:
    return ServerDecoder(server.url, NAME, TRANSLATOR, SETTINGS.repetition_penalty)


def _prepare(conversation="a film", n=3, **options):
    (asked,) = TRANSLATOR.prepare([conversation], n, **options)
    return asked


def _expected(question, recommender=RECOMMENDER) -> list[str]:
    options = {name: value for name, value in question.items() if name != "conversation"}
    return [str(row) for row in recommender.recommend(question["conversation"], **options)]


def test_a_server_gives_the_lists_of_the_recommender(stand_in, decoder):
    async def ask_all() -> list[TokenIds]:
        return await asyncio.gather(*(decoder.complete(_prepare(**question)) for question in QUESTIONS))

    lists = [[str(item) for item in TRANSLATOR.items(tokens)] for tokens in asyncio.run(ask_all())]
    assert lists == [_expected(question) for question in QUESTIONS]
    assert stand_in.headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": 500}, "told to fail"),
        ({"status": 307}, "told to fail"),
        ({"status": 401}, "told to fail.*; VLLM_API_KEY must be that of the server"),
        ({"is_cut": True}, "it has stopped in the middle of a list"),
        ({"name": "convrec-other"}, "no such model"),
        ({"is_garbled": True}, "Expecting property name"),
    ],
)
def test_a_server_that_fails_is_unavailable(stand_in, decoder, change, words):
    for name, value in change.items():
        setattr(stand_in, name, value)
    with pytest.raises(Unavailable, match=f"{stand_in.url} does not serve {NAME} .*{words}.*; start `convrec vllm-"):
        decoder.warm(_prepare())
    assert decoder.is_alive == ("is_cut" in change)


def test_a_server_that_tells_its_model_byte_by_byte_is_not_waited_for(stand_in, decoder, monkeypatch):
    monkeypatch.setattr(vllm_client, "_ANSWER_SECONDS", 0.2)
    stand_in.pause = 0.05
    assert not decoder.is_alive


def test_a_rejected_request_is_a_defect_and_another_version_is_refused(stand_in, decoder):
    stand_in.status = 400
    with pytest.raises(RuntimeError, match="rejects the request: .*told to fail"):
        decoder.warm(_prepare())
    stand_in.name, stand_in.status = "convrec-other", 200
    with pytest.raises(Unavailable, match=f"{stand_in.url} does not serve {NAME} .it serves convrec-other"):
        _decoder(stand_in)


def test_a_cancelled_request_leaves_its_server(stand_in, decoder):
    async def ask_and_leave() -> None:
        stand_in.may_answer.clear()
        asked = asyncio.create_task(decoder.complete(_prepare()))
        await asyncio.to_thread(until, lambda: stand_in.begun == 1)
        asked.cancel()
        await asyncio.to_thread(until, lambda: stand_in.left == 1)

    asyncio.run(ask_and_leave())
    assert decoder.is_alive


def test_the_service_is_not_ready_and_answers_503_until_the_server_is_back(stand_in, decoder):
    service = make_service({"champion": ServedModel("1", TRANSLATOR, decoder)}, limits=Limits())
    with serve(service) as running:
        assert running.get("/ready")[0] == 200
        stand_in.stop()
        status, body = answer(running.ask(conversation="a film", n=2))
        assert status == 503 and "does not serve" in body["error"]
        assert running.get("/ready")[0] == 503
        again = StandIn(NAME, stand_in.port)
        assert running.get("/ready")[0] == 200
        again.stop()


def test_the_address_of_a_server_may_end_as_openai_s():
    given = ("https://gpu1/", "http://[::1]:8001/v1/", "http://gateway/gpu1/v1")
    assert [check_url(url) for url in given] == ["https://gpu1", "http://[::1]:8001", "http://gateway/gpu1"]


def test_what_is_no_address_is_rejected(cli):
    for given in ("gpu1:8001", "ftp://gpu1", "http://", "http://gpu1:99999", "http://a b"):
        with pytest.raises(InputError, match="--vllm-server .*: not the address of a server; give one such as http://"):
            check_url(given)
    with pytest.raises(InputError, match="--vllm-server: the address of gpu1 holds a password") as rejected:
        check_url("http://me:secret@gpu1:8001")
    assert "secret" not in str(rejected.value)
    ended = cli("serve", "--port", "0", "--feedback", "none", "--vllm-server", "gpu1")
    assert ended.status == 2 and "--vllm-server 'gpu1': not the address of a server" in ended.err


def test_a_server_of_rollouts_rejects_a_key_which_trl_would_not_send(cli, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    ended = cli("vllm-server", "--training")
    assert ended.status == 2 and "sends no key; unset VLLM_API_KEY" in ended.err


@contextmanager
def _vllm_server(python: str, folder: Path, port: int) -> Iterator[subprocess.Popen]:
    """Run `convrec vllm-server` with vLLM's CPU build, in a session of its own, until the block ends."""
    options = ["--model", "model", "--port", str(port), "--gpu-share", "0.1", "--batch-size", "4"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "VLLM_CPU_KVCACHE_SPACE": "1"}
    command, log = [python, "-m", "convrec.cli", "vllm-server", *options], folder / f"vllm-{time.monotonic_ns()}.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )

    def answers() -> bool:
        assert server.poll() is None, log.read_text()[-4000:]
        with suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=10).status_code == 200
        return False

    try:
        until(answers, 300)
        yield server
    finally:
        _signal(server, signal.SIGKILL)
        server.wait()


def _signal(server: subprocess.Popen, number: int) -> bool:
    """Send a signal to a server's processes; return whether there is one."""
    with suppress(ProcessLookupError):
        os.killpg(server.pid, number)
        return True
    return False


def _recommended(service: Service, question) -> list[str]:
    reply = service.client.post("/recommend", json=question)
    assert reply.status_code == 200, reply.text
    rows = reply.json()["recommendations"]
    return [row["title"] + (f" ({row['year']})" if row["year"] else "") for row in rows]


def test_lists_of_vllm_s_server_are_those_of_the_recommender(gpu_python, project, monkeypatch):
    """Also after the server was killed and started again; until then the service answers 503."""
    monkeypatch.chdir(project)
    recommender, port = open_recommender("model"), free_port()
    expected = [_expected(question, recommender) for question in QUESTIONS]
    options = ("--model", "model", "--vllm-server", f"http://127.0.0.1:{port}")
    with (
        _vllm_server(gpu_python, project, port) as server,
        running_service(project, "--feedback", "none", *options) as service,
    ):
        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            assert list(pool.map(partial(_recommended, service), QUESTIONS)) == expected
        _signal(server, signal.SIGKILL)
        server.wait()
        reply = service.ask()
        assert reply.status_code == 503 and "does not serve convrec-" in reply.json()["error"]
        until(lambda: service.client.get("/ready").status_code == 503)
        with _vllm_server(gpu_python, project, port) as again:
            until(lambda: service.client.get("/ready").status_code == 200)
            assert [_recommended(service, question) for question in QUESTIONS] == expected
            _reject_lists_that_cannot_be_met(f"http://127.0.0.1:{port}")
            again.send_signal(signal.SIGTERM)
            assert again.wait(60) == 0
            until(lambda: not _signal(again, 0))


def _reject_lists_that_cannot_be_met(url: str) -> None:
    """Requests that would stop the engine are answered with an error, and the server goes on."""
    (model,) = httpx.get(f"{url}/v1/models").json()["data"]
    for length, words in ((0, "Input should be greater than 0"), (999, "a list of 999 items is asked for")):
        body = {"model": model["id"], "prompt": [1], "vllm_xargs": {"catalog_list_length": length}}
        reply = httpx.post(f"{url}/v1/completions", json=body, timeout=30)
        assert reply.status_code == 400 and words in reply.text
    assert httpx.get(f"{url}/health", timeout=30).status_code == 200
