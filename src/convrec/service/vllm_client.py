"""Decoding on vLLM servers, which `convrec vllm-server` starts; this process needs neither vLLM nor a GPU."""

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from convrec.generation.constraint import CatalogTrie
from convrec.generation.engine import TokenIds
from convrec.generation.vllm_requests import decoding_options, request_options
from convrec.project.errors import InputError, Unavailable
from convrec.service.batching import Completion, Decoder
from convrec.service.model_files import ModelFiles
from convrec.service.served import ServedModel
from convrec.service.translation import Prepared
from convrec.service.vllm_batching import vllm_translator

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

KEY = "VLLM_API_KEY"  # the environment variable that vLLM's server reads, too
CHECK_SECONDS = 2.0  # between two looks at a server
_ANSWER_SECONDS = 10.0  # within which a server tells its model
_CONNECT_SECONDS = 5.0
_IDLE_SECONDS = 2.0  # of a connection; the server closes it after 5 s


def check_url(url: str) -> str:
    """Return the address of a server without a final slash or `/v1`; raise `InputError` if it is no such address."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise InputError(f"--vllm-server {url!r:.200}: not the address of a server; give one such as http://gpu1:8001")
    if parts.username is not None or parts.password is not None:
        raise InputError(f"--vllm-server: the address of {parts.hostname} holds a password; put the key in {KEY}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def served_name(files: ModelFiles) -> str:
    """Return the name by which a vLLM server serves these files: another version has another one."""
    return f"convrec-{files.fingerprint()}"


@dataclass
class _Server:
    """A server, why it is left out ("" if it is not), and the requests that it answers now."""

    url: str
    problem: str = ""
    posts: set[asyncio.Task[Any]] = field(default_factory=set)


class _ServerError(Exception):
    """A server did not answer a request that another server may answer."""


class ServerDecoder(Decoder):
    """Decodes on the servers that serve the model `name`, each request on the one with the fewest running requests.

    Each server is asked every two seconds which model it serves. A server that does not answer, fails, or serves
    another model is left out until it serves the model, and its requests go to another one. If no server is left,
    requests fail with `Unavailable`. Cancelling a request closes its connection, at which vLLM drops the list. All
    requests are made in an event loop of its own, in a thread.
    """

    def __init__(
        self,
        urls: Sequence[str],
        name: str,
        trie: CatalogTrie,
        end_token: int,
        repetition_penalty: float,
        check_seconds: float = CHECK_SECONDS,
    ):
        """Raise `Unavailable` if no server serves the model."""
        self._name, self._trie, self._end, self._penalty = name, trie, end_token, repetition_penalty
        self._servers = [_Server(url) for url in dict.fromkeys(urls)]
        self._check_seconds = check_seconds
        self._tasks: set[asyncio.Task[Any]] = set()  # the requests
        self._lock, self._is_closing = threading.Lock(), False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm-client", daemon=True)
        self._thread.start()
        self._following = self._call(self._start()).result()
        if not self.is_alive:
            self.close()
            raise Unavailable(self._problems())

    def submit(self, asked: Prepared) -> Completion:
        with self._lock:
            if self._is_closing:
                raise RuntimeError("the engine is closed")
            return self._call(self._decode(asked))

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and any(not server.problem for server in self._servers)

    @property
    def num_waiting(self) -> int:
        return 0  # requests wait in vLLM's queue

    @property
    def num_running(self) -> int:
        return sum(len(server.posts) for server in self._servers)

    def close(self) -> None:
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        self._call(self._stop()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _start(self) -> list[asyncio.Task[None]]:
        """Look at all servers, and begin to follow them."""
        key = os.environ.get(KEY)
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),  # the service limits the time of a request
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS),
        )
        await asyncio.gather(*map(self._check, self._servers))
        return [asyncio.create_task(self._follow(server)) for server in self._servers]

    async def _stop(self) -> None:
        """Wait for the requests."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        await self._client.aclose()

    async def _follow(self, server: _Server) -> None:
        """Look at a server again and again; its requests go to another one if it cannot be used."""
        while True:
            await asyncio.sleep(self._check_seconds)
            await self._check(server)
            if server.problem:
                for post in server.posts:  # a server that is lost does not even close its connections
                    post.cancel()

    async def _check(self, server: _Server) -> None:
        """Ask a server which model it serves."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await self._send("GET", f"{server.url}/v1/models")
            names = [str(model["id"]) for model in answer["data"]]
            problem = "" if self._name in names else f"it serves {', '.join(names) or 'no model'}, not {self._name}"
        except TimeoutError:
            problem = f"it does not answer within {_ANSWER_SECONDS:g} s"
        except (LookupError, TypeError):
            problem = "it is not a vLLM server: /v1/models lists no models"
        except (_ServerError, RuntimeError) as error:
            problem = str(error)
        if server.problem and not problem:
            logger.info("%s serves %s", server.url, self._name)
        self._note(server, problem)

    async def _decode(self, asked: Prepared) -> TokenIds:
        """Return the completion by the first server that answers."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        body = {
            "model": self._name,
            "prompt": asked.prompt,
            "return_token_ids": True,
            "vllm_xargs": request_options(asked.request),
            **decoding_options(self._trie.longest(asked.request.length), self._penalty, self._end),
        }
        asked_before: set[str] = set()
        while others := [one for one in self._servers if not one.problem and one.url not in asked_before]:
            server = min(others, key=lambda one: len(one.posts))
            asked_before.add(server.url)
            try:
                return await self._complete(server, body)
            except _ServerError as error:
                self._note(server, str(error))
        raise Unavailable(self._problems())

    async def _complete(self, server: _Server, body: dict[str, Any]) -> TokenIds:
        """Return a server's completion."""
        post = asyncio.create_task(self._send("POST", f"{server.url}/v1/completions", json=body))
        server.posts.add(post)
        try:
            await asyncio.wait({post})
            if post.cancelled():
                raise _ServerError(server.problem)
            tokens = [int(token) for token in post.result()["choices"][0]["token_ids"]]
        except (LookupError, TypeError, ValueError):
            raise _ServerError("its answer has no token ids; it needs a vLLM with return_token_ids") from None
        finally:
            server.posts.discard(post)
            post.cancel()
        if not tokens or tokens[-1] != self._end:
            raise _ServerError("it has stopped in the middle of a list")
        return tokens

    async def _send(self, method: str, url: str, **options: Any) -> Any:
        """Return the JSON of an answer. Raises `_ServerError` if another server may answer the request."""
        try:
            response = await self._client.request(method, url, **options)
        except httpx.HTTPError as error:
            raise _ServerError(str(error) or type(error).__name__) from None
        status = f"status {response.status_code}, {response.text[:200]!r}"
        if response.status_code in (400, 422):  # every server would say so
            raise RuntimeError(f"{url} rejects the request: {status}")
        if not response.is_success:
            hint = f"; {KEY} must be that of the server" if response.status_code == 401 else ""
            raise _ServerError(status + hint)
        try:
            return response.json()
        except ValueError:
            raise _ServerError(f"its answer is not JSON: {response.text[:200]!r}") from None

    def _note(self, server: _Server, problem: str) -> None:
        if problem and not server.problem:
            logger.warning("%s is left out: %s", server.url, problem)
        server.problem = problem

    def _problems(self) -> str:
        problems = [f"{server.url}: {server.problem or 'it failed on this request'}" for server in self._servers]
        return (
            f"no vLLM server serves {self._name} ({'; '.join(problems)}); start `convrec vllm-server` with this version"
        )


def serve_on_servers(version: str, files: ModelFiles, urls: Sequence[str]) -> ServedModel:
    """Return a model whose lists are decoded by the servers at these addresses (`check_url`).

    Raises `Unavailable` if none of them serves these files.
    """
    translator = vllm_translator(files)
    end, penalty = translator.tokenizer.eos_token_id, files.settings.repetition_penalty
    decoder = ServerDecoder(urls, served_name(files), translator.trie, end, penalty)
    return ServedModel(version, translator, decoder, None)
