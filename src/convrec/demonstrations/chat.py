"""Concurrent prompts to one chat model, within a budget; each prompt is paid for once."""

import asyncio
import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from convrec.demonstrations.calls import CallStore, ChatAnswer
from convrec.project.errors import InputError
from convrec.project.redaction import redact

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS, MAX_RETRIES = 60.0, 5  # of one call; the SDK waits longer before each retry
REPORT_EVERY = 10.0  # seconds
KEYLESS = "none"  # sent to endpoints that need no key; the SDK requires one
DETAIL_LENGTH = 200  # characters of an endpoint's own words
CHARACTERS_PER_TOKEN = 3  # a cautious estimate: English has about 4
# What the prompts of a purpose took: `cached`, `failed` and `cut` count prompts, `calls` those sent and answered. `cut`
# are the answers that ended at max_completion_tokens.
_TALLY = ("calls", "cached", "failed", "cut", "prompt_tokens", "completion_tokens")


def sendable(text: str) -> str:
    """Return the text without lone surrogates, which JSON can encode and UTF-8 cannot."""
    return text.encode(errors="replace").decode()


def read_reply(body: str, prompt: str) -> ChatAnswer | None:
    """Return the answer in the body of a completion, None if it has no text; without usage, tokens are estimated."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    match value:
        case {"choices": [{"message": {"content": str(text)}} as choice, *_]} if text.strip():
            reason = choice.get("finish_reason")
            match value.get("usage"):
                case {"prompt_tokens": int(sent), "completion_tokens": int(received)}:
                    pass
                case _:
                    sent, received = len(prompt) // CHARACTERS_PER_TOKEN, len(text) // CHARACTERS_PER_TOKEN
            return ChatAnswer(sendable(text), sendable(reason) if isinstance(reason, str) else None, sent, received)
    return None


def _shown(text: str) -> str:
    # Redacted first: a cut through the key would leave its half.
    return " ".join(redact(text).split())[:DETAIL_LENGTH]


@dataclass
class _Ask:
    """One batch of prompts: their answers, what they took, and why it stopped early, if it did."""

    purpose: str
    times: Counter[str]  # identical prompts are asked once
    before: int  # tokens of all earlier calls
    answers: dict[str, str] = field(default_factory=dict)
    tally: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(_TALLY, 0)))
    stopped: str = ""  # the first reason to start no more calls
    next_report: float = field(default_factory=lambda: time.monotonic() + REPORT_EVERY)

    @property
    def tokens(self) -> int:
        return self.tally["prompt_tokens"] + self.tally["completion_tokens"]

    @property
    def answered(self) -> str:
        return f"{sum(self.times[prompt] for prompt in self.answers):,} of {self.times.total():,}"

    def take(self, prompt: str, answer: ChatAnswer) -> None:
        self.answers[prompt] = answer.text
        self.tally["cut"] += self.times[prompt] * (answer.finish_reason == "length")
        if time.monotonic() >= self.next_report:
            self.report()

    def fail(self, prompt: str, fault: str, max_failed: float) -> None:
        logger.log(logging.DEBUG if self.tally["failed"] else logging.WARNING, "%s: failed: %s", self.purpose, fault)
        self.tally["failed"] += self.times[prompt]
        if self.tally["failed"] > math.ceil(max_failed * self.times.total()):
            self.stopped = self.stopped or (
                f"{self.tally['failed']:,} prompts failed, more than demonstrations.teacher.max_failed = "
                f"{max_failed!r} allows; the last fault was {fault}; mend that, or allow more"
            )

    def report(self) -> None:
        self.next_report = time.monotonic() + REPORT_EVERY
        text = "%s: %s answered (%d from the cache), %d failed, %d cut at max_completion_tokens, %d tokens"
        counts = (self.tally["cached"], self.tally["failed"], self.tally["cut"], self.tokens)
        logger.info(text, self.purpose, self.answered, *counts)


@dataclass
class ChatClient:
    """Asks one model behind an OpenAI-compatible endpoint. The key comes from OPENAI_API_KEY alone.

    Temperature None leaves the model's own. Of the prompts of one `ask`, a share of `max_failed` may stay without an
    answer. No call starts once all calls recorded in `store` have taken `token_budget` tokens; those in flight may
    exceed it. A call without an answer is not recorded.
    """

    store: CallStore
    model: str
    base_url: str | None
    temperature: float | None
    max_completion_tokens: int
    max_concurrency: int
    max_failed: float
    token_budget: int | None
    seconds: float = TIMEOUT_SECONDS
    max_retries: int = MAX_RETRIES

    def __post_init__(self) -> None:
        self._key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not self._key and self.base_url is None:
            raise InputError(
                "OPENAI_API_KEY is not set, and the default endpoint needs it: export it, or name an endpoint that "
                "needs none in demonstrations.teacher.base_url"
            )
        if not (self._key.isascii() and self._key.isprintable()):
            raise InputError("OPENAI_API_KEY holds characters that no key has; export it again")
        self._usage: dict[str, Counter[str]] = {}

    def ask(self, prompts: Sequence[str], purpose: str) -> list[str | None]:
        """Return the answer to each prompt, sent as one user message, or None where it failed.

        Answers that the store holds are not asked for again, and each new one is on disk before the next call starts.
        Raises InputError if the endpoint refuses, too many prompts fail, or the budget ends; what is answered is kept.
        """
        _, *tokens = self.store.spent()
        ask = _Ask(purpose, Counter(prompts), sum(tokens))
        for prompt, times in ask.times.items():
            if known := self.store.get(self._request(prompt)):
                ask.tally["cached"] += times
                ask.take(prompt, known)
        pending = [prompt for prompt in ask.times if prompt not in ask.answers]
        try:
            if pending:
                asyncio.run(self._ask_all(ask, pending))
        finally:
            self._usage.setdefault(purpose, Counter()).update(ask.tally)
            ask.report()
        if ask.stopped:
            raise InputError(
                f"{purpose}: {ask.stopped}, and rerun: the answers to {ask.answered} prompts are kept in "
                f"{self.store.path}, and only the rest is asked again"
            )
        return [ask.answers.get(prompt) for prompt in prompts]

    def usage(self) -> dict[str, dict[str, float]]:
        """Return, by purpose, what this client's asks took (`_TALLY`), and in `total` all calls that the store has."""
        return {**{purpose: dict(sums) for purpose, sums in self._usage.items()}, "total": self.store.spent()._asdict()}

    def _request(self, prompt: str) -> dict[str, Any]:
        """Return what the answer depends on; neither the endpoint nor the key is part of it."""
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": sendable(prompt)}],
            "temperature": None if self.temperature is None else float(self.temperature),  # 0 and 0.0 are one request
            "max_completion_tokens": self.max_completion_tokens,
        }

    async def _ask_all(self, ask: _Ask, pending: list[str]) -> None:
        """Ask for one prompt after the other in each of some workers, until none is left or the ask is stopped."""
        import openai  # noqa: PLC0415  (a second to import; only a teacher that asks needs it)

        left = iter(pending)

        async def work() -> None:
            while not ask.stopped and (prompt := next(left, None)) is not None:
                if self.token_budget is not None and (spent := ask.before + ask.tokens) >= self.token_budget:
                    ask.stopped = (
                        f"demonstrations.teacher.token_budget = {self.token_budget} is reached, with {spent:,} tokens "
                        "spent; raise it"
                    )
                    return
                request = self._request(prompt)
                sent = {name: value for name, value in request.items() if value is not None}
                try:
                    # The raw response: the SDK's parsed one is anything from None to str for a body of another kind.
                    response = await client.chat.completions.with_raw_response.create(**sent)
                except openai.APIError as error:  # kept as text: the causes of the SDK's errors may hold the key
                    fault = _shown(f"{error} ({error.__cause__})" if error.__cause__ else str(error))
                    if isinstance(error, openai.APIStatusError):
                        if target := error.response.headers.get("location"):
                            fault = _shown(f"it redirects to {target}")
                        if target or error.status_code in (401, 403, 404):
                            ask.stopped = ask.stopped or self._refusal(fault)
                    ask.fail(prompt, fault, self.max_failed)
                    continue
                answer = read_reply(response.text, prompt)
                if answer is None:
                    ask.fail(prompt, f"no text in the answer: {_shown(response.text)}", self.max_failed)
                    continue
                self.store.put(request, answer)
                took = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens}
                ask.tally.update(calls=1, **took)
                ask.take(prompt, answer)

        seconds = self.seconds

        class Client(openai.DefaultAsyncHttpxClient):  # type: ignore[misc]
            async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
                try:
                    async with asyncio.timeout(seconds):  # the client's own limit begins anew at each byte
                        return await super().send(request, **options)
                except TimeoutError:
                    raise httpx2.ReadTimeout(f"no whole answer within {seconds:g} s") from None

        async with openai.AsyncOpenAI(
            api_key=self._key or KEYLESS,
            base_url=self.base_url,
            timeout=seconds,
            max_retries=self.max_retries,
            # A redirect would send the prompts to a place that the user has not named.
            http_client=Client(follow_redirects=False),
        ) as client:
            await asyncio.gather(*(work() for _ in range(min(self.max_concurrency, len(pending)))))

    def _refusal(self, fault: str) -> str:
        key = "the key in OPENAI_API_KEY" if self._key else "no key, because OPENAI_API_KEY is not set"
        place, model = (f"demonstrations.teacher.{name} = {getattr(self, name)!r}" for name in ("base_url", "model"))
        return f"{place} refuses {model} with {key} ({fault}); mend one of them"
