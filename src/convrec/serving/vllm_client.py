"""Decoding on vLLM servers, which `convrec vllm-server` starts; this process needs neither vLLM nor a GPU."""

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from convrec.errors import InputError, Unavailable
from convrec.generation.constraint import CatalogTrie
from convrec.generation.engine import TokenIds
from convrec.generation.vllm_requests import decoding_options, request_options
from convrec.serving.batching import Completion
from convrec.serving.model_files import ModelFiles
from convrec.serving.served import ServedModel
from convrec.serving.translation import Prepared
from convrec.serving.vllm_batching import vllm_translator

logger = logging.getLogger(__name__)

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
    problem: str = "it has not answered yet"
    posts: set[asyncio.Task[httpx.Response]] = field(default_factory=set)


class _ServerError(Exception):
    """A server did not answer a request that another server may answer."""


class ServerDecoder:
    """Decodes on the servers that serve the model `name`, each request on the one with the fewest running requests.

    A thread asks each server every two seconds which model it serves. A server that does not answer, fails, or serves
    another model is left out until it serves the model, and its requests go to another one. If no server is left,
    requests fail with `Unavailable`. Cancelling a request closes its connection, at which vLLM drops the list.
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
        self._requests: set[asyncio.Task[Any]] = set()
        self._lock, self._is_closing = threading.Lock(), False
        self._loop, self._is_checked = asyncio.new_event_loop(), threading.Event()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="vllm-client", daemon=True)
        self._thread.start()
        self._is_checked.wait()
        if not self.is_alive:
            self.close()
            raise Unavailable(self._problems())
        for server in self._servers:
            if server.problem:
                logger.warning("%s is left out: %s", server.url, server.problem)

    def submit(self, asked: Prepared) -> Completion:
        """Return the future completion of a request; it fails with `Unavailable` if no server answers."""
        with self._lock:
            if self._is_closing:
                raise RuntimeError("the engine is closed")
            return asyncio.run_coroutine_threadsafe(self._decode(asked), self._loop)

    @property
    def is_alive(self) -> bool:
        """Whether a server serves the model."""
        return self._thread.is_alive() and any(not server.problem for server in self._servers)

    @property
    def num_waiting(self) -> int:
        """Zero: requests wait in vLLM's queue."""
        return 0

    @property
    def num_running(self) -> int:
        """The number of requests that the servers have, decoded or in their queues."""
        return sum(len(server.posts) for server in self._servers)

    def close(self) -> None:
        """Wait for the requests; no request is accepted any more."""
        with self._lock:
            if not self._is_closing:
                self._is_closing = True
                self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._is_checked.set()
            self._loop.close()

    async def _serve(self) -> None:
        key = os.environ.get(KEY)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)  # the service limits the time of a request
        limits = httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS)
        async with httpx.AsyncClient(headers=headers, timeout=timeout, limits=limits) as self._client:
            for server, problem in zip(
                self._servers, await asyncio.gather(*map(self._check, self._servers)), strict=True
            ):
                server.problem = problem
            self._is_checked.set()
            following = [asyncio.create_task(self._follow(server)) for server in self._servers]
            await self._closing.wait()
            while self._requests:
                await asyncio.wait(self._requests)
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    async def _follow(self, server: _Server) -> None:
        """Ask a server again and again which model it serves."""
        while True:
            await asyncio.sleep(self._check_seconds)
            problem = await self._check(server)
            if problem:
                self._leave_out(server, problem)
                for post in server.posts:  # a server that is lost does not even close its connections
                    post.cancel()
            elif server.problem:
                logger.info("%s serves %s again", server.url, self._name)
                server.problem = ""

    async def _check(self, server: _Server) -> str:
        """Return why a server cannot be used; "" if it can."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                response = await self._client.get(f"{server.url}/v1/models")
        except TimeoutError:
            return f"it does not answer within {_ANSWER_SECONDS:g} s"
        except httpx.HTTPError as error:
            return _words(error)
        if not response.is_success:
            return _status(response)
        try:
            names = [str(model["id"]) for model in response.json()["data"]]
        except (ValueError, KeyError, TypeError):
            return "it is not a vLLM server: /v1/models lists no models"
        return "" if self._name in names else f"it serves {', '.join(names) or 'no model'}, not {self._name}"

    async def _decode(self, asked: Prepared) -> TokenIds:
        """Return the completion by the first server that answers."""
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        body = {
            "model": self._name,
            "prompt": asked.prompt,
            "return_token_ids": True,
            "vllm_xargs": request_options(asked.request),
            **decoding_options(self._trie.longest(asked.request.length), self._penalty, self._end),
        }
        asked_before: set[str] = set()
        while True:
            others = [one for one in self._servers if not one.problem and one.url not in asked_before]
            if not others:
                raise Unavailable(self._problems())
            server = min(others, key=lambda one: len(one.posts))
            asked_before.add(server.url)
            try:
                return await self._post(server, body)
            except _ServerError as error:
                self._leave_out(server, str(error))

    async def _post(self, server: _Server, body: dict[str, Any]) -> TokenIds:
        """Return a server's completion. Raises `_ServerError` if another server may answer the request."""
        post = asyncio.create_task(self._client.post(f"{server.url}/v1/completions", json=body))
        server.posts.add(post)
        try:
            await asyncio.wait({post})
            if post.cancelled():
                raise _ServerError(server.problem)
            response = post.result()
        except httpx.HTTPError as error:
            raise _ServerError(_words(error)) from None
        finally:
            server.posts.discard(post)
            post.cancel()
        if response.status_code in (400, 422):  # every server would say so
            raise RuntimeError(f"{server.url} rejects the request: {_status(response)}")
        if not response.is_success:
            raise _ServerError(_status(response))
        try:
            tokens = [int(token) for token in response.json()["choices"][0]["token_ids"]]
        except (ValueError, LookupError, TypeError):
            raise _ServerError("its answer has no token ids; it needs a vLLM with return_token_ids") from None
        if not tokens or tokens[-1] != self._end:
            raise _ServerError("it has stopped in the middle of a list")
        return tokens

    def _leave_out(self, server: _Server, problem: str) -> None:
        if not server.problem:
            logger.warning("%s is left out: %s", server.url, problem)
        server.problem = problem

    def _problems(self) -> str:
        problems = [f"{server.url}: {server.problem or 'it failed on this request'}" for server in self._servers]
        return (
            f"no vLLM server serves {self._name} ({'; '.join(problems)}); start `convrec vllm-server` with this version"
        )


def _words(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__


def _status(response: httpx.Response) -> str:
    hint = f"; {KEY} must be that of the server" if response.status_code == 401 else ""
    return f"status {response.status_code}, {response.text[:200]!r}{hint}"


def serve_on_servers(version: str, files: ModelFiles, urls: Sequence[str]) -> ServedModel:
    """Return a model whose lists are decoded by the servers at these addresses (`check_url`).

    Raises `Unavailable` if none of them serves these files.
    """
    translator = vllm_translator(files)
    end, penalty = translator.tokenizer.eos_token_id, files.settings.repetition_penalty
    decoder = ServerDecoder(urls, served_name(files), translator.trie, end, penalty)
    return ServedModel(version, translator, decoder, None)
