"""Decoding on a vLLM server, which `convrec vllm-server` starts; this process needs neither vLLM nor a GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from openai import AsyncOpenAI, AuthenticationError, BadRequestError, OpenAI, OpenAIError, Timeout
from openai import DefaultAsyncHttpxClient as AsyncHttp
from openai import DefaultHttpxClient as Http
from openai.types import Completion
from pydantic import HttpUrl, TypeAdapter, ValidationError

from convrec.classical.guidance import Guidance
from convrec.data.catalog import Catalog
from convrec.generation.engine import TokenIds
from convrec.generation.lists import ListSettings
from convrec.generation.model_folders import model_files
from convrec.generation.trie import CatalogTrie, ListRequest
from convrec.generation.vllm_requests import decoding_options, request_options
from convrec.project.code import make_key
from convrec.project.errors import InputError, Unavailable
from convrec.service.served import Batcher, Call, ServedModel
from convrec.service.translation import LIST_LENGTH, ModelFiles, Prepared, Translator

KEY = "VLLM_API_KEY"  # the environment variable that vLLM's server reads, too
_ANSWER_SECONDS = 10.0  # within which a server tells its model
_CONNECT_SECONDS = 5.0
_GUIDED_ROWS = 64  # at most, whose guidance is computed at once


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
    key = make_key(asdict(files.settings), [*model_files(files.checkpoint), files.catalog])
    return f"convrec-{key.task}"


def vllm_lengths(settings: ListSettings, trie: CatalogTrie) -> tuple[int, int]:
    """Return the longest prompt and list in tokens, whose sum is the context that vLLM is started with.

    Lists of up to 20 items, or the trained length, surely fit beside a prompt.
    """
    return settings.max_prompt_length, trie.longest(max(settings.list_length, LIST_LENGTH))


def vllm_translator(files: ModelFiles) -> tuple[Translator, Catalog | None]:
    """Return the translator of a model whose lists vLLM decodes, within the context of `vllm_lengths`.

    Also return the catalog if the model lacks some of its items (see `keep_up`).
    """
    catalog, tokenizer, newer = files.load_texts()
    translator = Translator(catalog, tokenizer, files.settings, None, Guidance.load(files.guidance, catalog))
    translator.positions = sum(vllm_lengths(files.settings, translator.trie))  # vLLM rejects longer ones
    return translator, newer


class ServerDecoder:
    """Decodes on the server that serves the model `name`.

    Cancelling a request closes its connection, at which vLLM drops the list.
    """

    def __init__(self, url: str, name: str, translator: Translator, repetition_penalty: float):
        """Raise `Unavailable` if the server does not serve the model."""
        self._url, self._name, self._trie, self._penalty = url, name, translator.trie, repetition_penalty
        self._end = translator.tokenizer.eos_token_id
        self._guiding = Batcher(translator.guided, _GUIDED_ROWS)
        # One retry, also of a connection that the server closes just then; the service limits the time of a request.
        timeout = Timeout(None, connect=_CONNECT_SECONDS)
        options: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": os.environ.get(KEY) or "none", "max_retries": 1}
        # A redirect would send conversations to another server.
        self._client = AsyncOpenAI(**options, timeout=timeout, http_client=AsyncHttp(follow_redirects=False))
        self._blocking = OpenAI(**options, timeout=timeout, http_client=Http(follow_redirects=False))
        self._check()

    async def complete(self, asked: Prepared) -> TokenIds:
        request = await self._guiding.complete(asked)
        with self._reported():
            answer = await self._client.completions.create(**self._options(asked.prompt, request))
            return self._tokens(answer)

    def warm(self, asked: Prepared) -> TokenIds:
        request = self._guiding.warm(asked)
        with self._reported():
            return self._tokens(self._blocking.completions.create(**self._options(asked.prompt, request)))

    @property
    def is_alive(self) -> bool:
        """Whether the server serves the model; asks it."""
        try:
            self._check()
        except Unavailable:
            return False
        return True

    def _check(self) -> None:
        """Raise `Unavailable` if the server does not serve the model."""
        call = Call(lambda: [model.id for model in self._blocking.models.list(timeout=_ANSWER_SECONDS)])
        with self._reported():
            try:
                names = call.result.result(_ANSWER_SECONDS)  # the client's own limit begins anew at each byte
            except TimeoutError:
                raise self._unavailable(f"no answer within {_ANSWER_SECONDS:g} s") from None
            finally:
                call.end()
            if self._name not in names:
                raise self._unavailable(f"it serves {', '.join(names) or 'no model'}")

    def _options(self, prompt: TokenIds, request: ListRequest) -> dict[str, Any]:
        options = {
            "return_token_ids": True,
            "vllm_xargs": request_options(request),
            **decoding_options(self._trie.longest(request.length), self._penalty, self._end),
        }
        return {"model": self._name, "prompt": prompt, "extra_body": options}

    def _tokens(self, answer: Completion) -> TokenIds:
        """Return the tokens of a completion, with its end token."""
        tokens = (answer.choices[0].model_extra or {})["token_ids"]
        if not tokens or tokens[-1] != self._end:
            raise self._unavailable("it has stopped in the middle of a list")
        return tokens

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Raise `Unavailable` in place of an error of the client, or of an answer that is not vLLM's."""
        try:
            yield
        except BadRequestError as error:
            raise RuntimeError(f"{self._url} rejects the request: {error}") from None
        except (OpenAIError, LookupError, TypeError, AttributeError, ValueError) as error:
            raise self._unavailable(error) from None

    def _unavailable(self, reason: Exception | str) -> Unavailable:
        hint = f"; {KEY} must be that of the server" if isinstance(reason, AuthenticationError) else ""
        return Unavailable(
            f"{self._url} does not serve {self._name} ({reason}{hint}); start `convrec vllm-server` with this version"
        )


def serve_on_server(version: str, files: ModelFiles, url: str) -> ServedModel:
    """Return a model whose lists are decoded by the server at this address (`check_url`).

    Raises `Unavailable` if it does not serve these files.
    """
    (translator, _), name = vllm_translator(files), served_name(files)
    return ServedModel(version, translator, ServerDecoder(url, name, translator, files.settings.repetition_penalty))
