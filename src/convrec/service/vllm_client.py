"""Decoding on a vLLM server, which `convrec vllm-server` starts; this process needs neither vLLM nor a GPU."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from dataclasses import asdict
from typing import Any, TypeVar

from openai import AsyncOpenAI, AuthenticationError, BadRequestError, OpenAIError, Timeout
from pydantic import HttpUrl, TypeAdapter, ValidationError

from convrec.generation.constraint import CatalogTrie
from convrec.generation.engine import TokenIds
from convrec.generation.lists import ListSettings
from convrec.generation.model_folders import model_files
from convrec.generation.vllm_requests import decoding_options, request_options
from convrec.project.code import fingerprint
from convrec.project.errors import InputError, Unavailable
from convrec.service.served import ServedModel
from convrec.service.translation import LIST_LENGTH, ModelFiles, Prepared, Translator

KEY = "VLLM_API_KEY"  # the environment variable that vLLM's server reads, too
_ANSWER_SECONDS = 10.0  # within which a server tells its model
_CONNECT_SECONDS = 5.0
_PROMPT_LENGTH = 1024  # tokens of a prompt, where the model's settings have no limit
_BAD_ANSWER = (OpenAIError, LookupError, TypeError, AttributeError, ValueError)  # also of a server that is not vLLM's
T = TypeVar("T")


def check_url(url: str) -> str:
    """Return the address of a server without a final slash or `/v1`; raise `InputError` if it is no such address."""
    try:
        parsed = TypeAdapter(HttpUrl).validate_python(url)
    except ValidationError:
        raise InputError(
            f"--vllm-server {url!r:.200}: not the address of a server; give one such as http://gpu1:8001"
        ) from None
    if parsed.username or parsed.password:
        raise InputError(f"--vllm-server: the address of {parsed.host} holds a password; put the key in {KEY}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def served_name(files: ModelFiles) -> str:
    """Return the name by which a vLLM server serves these files, with a digest of all that the lists depend on.

    It reads the weights. Copies of a version on several machines have the same name.
    """
    digest = fingerprint(asdict(files.settings), [*model_files(files.checkpoint), files.catalog])
    return f"convrec-{digest}"


def vllm_lengths(settings: ListSettings, trie: CatalogTrie) -> tuple[int, int]:
    """Return the longest prompt and list in tokens, whose sum is the context that vLLM is started with.

    Lists of up to 20 items, or the trained length, surely fit beside a prompt.
    """
    return settings.max_prompt_length or _PROMPT_LENGTH, trie.longest(max(settings.list_length, LIST_LENGTH))


def vllm_translator(files: ModelFiles) -> Translator:
    """Return the translator of a model whose lists vLLM decodes, within the context of `vllm_lengths`."""
    catalog, tokenizer = files.load_texts()
    translator = Translator(catalog, tokenizer, files.settings, None)
    translator.positions = sum(vllm_lengths(files.settings, translator.trie))  # vLLM rejects longer ones
    return translator


class ServerDecoder:
    """Decodes on the server that serves the model `name`.

    Cancelling a request closes its connection, at which vLLM drops the list. All requests are made in an event loop of
    its own, in a thread.
    """

    def __init__(self, url: str, name: str, trie: CatalogTrie, end_token: int, repetition_penalty: float):
        """Raise `Unavailable` if the server does not serve the model."""
        self._url, self._name, self._trie, self._end, self._penalty = url, name, trie, end_token, repetition_penalty
        self._requests: set[Future[TokenIds]] = set()
        self._checks: set[Future[None]] = set()
        self._lock, self._is_closing = threading.Lock(), False
        self._client = AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key=os.environ.get(KEY) or "none",
            max_retries=1,  # also of a connection that the server closes just then
            timeout=Timeout(None, connect=_CONNECT_SECONDS),  # the service limits the time of a request
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm-client", daemon=True)
        self._thread.start()
        try:
            self._start(self._check(), self._checks).result()
        except BaseException:
            self.close()
            raise

    def submit(self, asked: Prepared) -> Future[TokenIds]:
        return self._start(self._complete(asked), self._requests)

    def _start(self, work: Coroutine[Any, Any, T], started: set[Future[T]]) -> Future[T]:
        """Run `work` in the loop; `close` waits for what was started."""
        with self._lock:
            if self._is_closing:
                work.close()
                raise RuntimeError("the engine is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            started.add(future)
        future.add_done_callback(started.discard)
        return future

    @property
    def is_alive(self) -> bool:
        """Whether the server serves the model; asks it."""
        try:
            self._start(self._check(), self._checks).result()
        except RuntimeError:  # Unavailable, or closed
            return False
        return True

    @property
    def num_waiting(self) -> int:
        return 0  # requests wait in vLLM's queue

    @property
    def num_running(self) -> int:
        return len(self._requests)

    def close(self) -> None:
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        started: set[Future[Any]] = {*self._requests, *self._checks}
        wait(started)
        asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _check(self) -> None:
        """Raise `Unavailable` if the server does not serve the model."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                names = [model.id async for model in self._client.models.list()]
        except TimeoutError:
            raise self._unavailable(f"no answer within {_ANSWER_SECONDS:g} s") from None
        except _BAD_ANSWER as error:
            raise self._unavailable(error) from None
        if self._name not in names:
            raise self._unavailable(f"it serves {', '.join(names) or 'no model'}")

    async def _complete(self, asked: Prepared) -> TokenIds:
        """Return the completion of a request, with its end token."""
        options = {
            "return_token_ids": True,
            "vllm_xargs": request_options(asked.request),
            **decoding_options(self._trie.longest(asked.request.length), self._penalty, self._end),
        }
        try:
            answer = await self._client.completions.create(model=self._name, prompt=asked.prompt, extra_body=options)
            tokens = (answer.choices[0].model_extra or {})["token_ids"]
        except BadRequestError as error:
            raise RuntimeError(f"{self._url} rejects the request: {error}") from None
        except _BAD_ANSWER as error:
            raise self._unavailable(error) from None
        if not tokens or tokens[-1] != self._end:
            raise self._unavailable("it has stopped in the middle of a list")
        return tokens

    def _unavailable(self, reason: Exception | str) -> Unavailable:
        hint = f"; {KEY} must be that of the server" if isinstance(reason, AuthenticationError) else ""
        return Unavailable(
            f"{self._url} does not serve {self._name} ({reason}{hint}); start `convrec vllm-server` with this version"
        )


def serve_on_server(version: str, files: ModelFiles, url: str) -> ServedModel:
    """Return a model whose lists are decoded by the server at this address (`check_url`).

    Raises `Unavailable` if it does not serve these files.
    """
    translator, name = vllm_translator(files), served_name(files)
    end, penalty = translator.tokenizer.eos_token_id, files.settings.repetition_penalty
    return ServedModel(version, translator, ServerDecoder(url, name, translator.trie, end, penalty), None)
