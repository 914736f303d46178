"""Concurrent prompts to one chat model, within a budget; each prompt is paid for once."""

import asyncio
import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from convrec.demonstrations.calls import CallStore, ChatAnswer, Spent, request_key
from convrec.project.errors import InputError
from convrec.project.redaction import redact

logger = logging.getLogger(__name__)

REPORT_EVERY = 10.0  # seconds
KEYLESS = "none"  # sent to endpoints that need no key; the SDK requires one
DETAIL_LENGTH = 200  # characters of an endpoint's own words
MAX_TOKENS = 10**9  # of one call; a larger number is treated as an error
BYTES_PER_TOKEN = 3  # a cautious estimate: English has about 4
# What the prompts of a purpose took: `cached`, `failed` and `cut` count prompts, `calls` those sent and answered. `cut`
# are the answers that ended at max_completion_tokens; `retries` are those of the calls that were answered.
_TALLY = ("calls", "cached", "failed", "retries", "cut", "prompt_tokens", "completion_tokens", "cost")


class Budget(NamedTuple):
    """Limits on all calls ever recorded in a file, and prices per million tokens in any currency."""

    max_tokens: int | None
    max_cost: float | None
    prompt_price: float
    completion_price: float


class Fault(Exception):
    """One prompt stays without an answer."""


def sendable(text: str) -> str:
    """Return the text without lone surrogates, which JSON can encode and UTF-8 cannot."""
    return text.encode(errors="replace").decode()


def _estimated_tokens(text: str) -> int:
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


def read_reply(body: str) -> tuple[str | None, str | None, tuple[int, int] | None]:
    """Return text, finish reason and usage (tokens of prompt and completion) of a completion, each None without one."""
    text = reason = None
    counts: tuple[Any, Any] = (None, None)
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None, None, None
    with suppress(LookupError, TypeError):  # an answer without a text is paid for, too
        counts = value["usage"]["prompt_tokens"], value["usage"]["completion_tokens"]
    with suppress(LookupError, TypeError, AttributeError):
        reason = value["choices"][0].get("finish_reason")
        text = value["choices"][0]["message"]["content"]
    return (
        sendable(text) if isinstance(text, str) and text.strip() else None,
        sendable(reason) if isinstance(reason, str) else None,
        counts if all(type(count) is int and 0 <= count <= MAX_TOKENS for count in counts) else None,
    )


def _shown(text: str) -> str:
    # Redacted first: a cut through the key would leave its half.
    return " ".join(redact(text).split())[:DETAIL_LENGTH]


class _Ask:
    """One batch of prompts: their answers, what they took, and why it stopped early, if it did."""

    def __init__(self, prompts: Sequence[str], purpose: str, before: Spent):
        self.purpose, self.size, self.before = purpose, len(prompts), before
        self.times = Counter(prompts)  # identical prompts are asked once
        self.answers: dict[str, str] = {}
        self.tally: dict[str, Any] = dict.fromkeys(_TALLY, 0)
        self.stopped: str | None = None  # the first reason to start no more calls
        self.fault = ""
        self._next_report = time.monotonic() + REPORT_EVERY

    @property
    def answered(self) -> int:
        """The number of prompts that have an answer."""
        return sum(self.times[prompt] for prompt in self.answers)

    def take(self, prompt: str, text: str, finish_reason: str | None) -> None:
        self.answers[prompt] = text
        self.tally["cut"] += self.times[prompt] * (finish_reason == "length")
        if time.monotonic() >= self._next_report:
            self.report()
            self._next_report = time.monotonic() + REPORT_EVERY

    def fail(self, prompt: str, fault: str, max_failed: float) -> None:
        if not self.fault:
            logger.warning("%s: a prompt failed: %s", self.purpose, fault)
        self.fault = fault
        self.tally["failed"] += self.times[prompt]
        if self.tally["failed"] > math.ceil(max_failed * self.size):
            self.stopped = self.stopped or (
                f"{self.purpose}: {self.tally['failed']:,} of {self.size:,} prompts failed, more than "
                f"demonstrations.teacher.max_failed = {max_failed!r} allows; the last fault was {fault}; "
                "mend that, or allow more"
            )

    def report(self) -> None:
        took = self.tally
        tokens, cost = took["prompt_tokens"] + took["completion_tokens"], took["cost"]
        text = "%s: %d of %d answered (%d from the cache), %d tokens, cost %.2f"
        logger.info(text, self.purpose, self.answered, self.size, took["cached"], tokens, cost)

    def report_end(self) -> None:
        self.report()
        failed, cut = self.tally["failed"], self.tally["cut"]
        if failed:
            logger.warning("%s: %d prompts failed; the last fault was %s", self.purpose, failed, self.fault)
        if cut:
            limit = "demonstrations.teacher.max_completion_tokens"
            logger.warning("%s: %d of %d answers end at %s, unfinished; raise it", self.purpose, cut, self.size, limit)


@dataclass
class ChatClient:
    """Asks one model behind an OpenAI-compatible endpoint. The key comes from OPENAI_API_KEY alone.

    Temperature None leaves the model's own. The SDK repeats a call up to `max_retries` times after a timeout, a lost
    connection, a rate limit or a server error. Of the prompts of one `ask`, a share of `max_failed` may stay without an
    answer. No call starts once all calls recorded in `store` have reached a limit of `budget`; those in flight may
    exceed it. A call that ends without a completion reports no usage, and is not counted.
    """

    store: CallStore
    model: str
    base_url: str | None
    temperature: float | None
    max_completion_tokens: int
    max_concurrency: int
    timeout_seconds: float
    max_retries: int
    max_failed: float
    budget: Budget

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
        ask = _Ask(prompts, purpose, self.store.spent())
        for prompt, times in ask.times.items():
            known = self.store.get(request_key(self._request(prompt)))
            if known is not None and known.text is not None:
                ask.tally["cached"] += times
                ask.take(prompt, known.text, known.finish_reason)
        pending = [prompt for prompt in ask.times if prompt not in ask.answers]
        try:
            if pending:
                asyncio.run(self._ask_all(ask, pending))
        finally:
            self._usage.setdefault(purpose, Counter()).update(ask.tally)
            ask.report_end()
        if ask.stopped is not None:
            raise InputError(
                f"{ask.stopped}, and rerun: the answers to {ask.answered:,} of {ask.size:,} prompts are kept in "
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
        key, url = self._key or KEYLESS, self.base_url

        async def work() -> None:
            while ask.stopped is None and (prompt := next(left, None)) is not None:
                try:
                    self._check_budget(ask)
                    await self._answer(ask, client, prompt)
                except Fault as fault:
                    ask.fail(prompt, str(fault), self.max_failed)
                except InputError as error:  # a limit, a refusal, or the store's, for instance a full disk
                    ask.stopped = ask.stopped or str(error)

        async with (
            openai.AsyncOpenAI(
                api_key=key, base_url=url, max_retries=self.max_retries, timeout=self.timeout_seconds
            ) as client,
            asyncio.TaskGroup() as workers,
        ):
            for _ in range(min(self.max_concurrency, len(pending))):
                workers.create_task(work())

    def _check_budget(self, ask: _Ask) -> None:
        before, tally, budget = ask.before, ask.tally, self.budget
        tokens = before.prompt_tokens + before.completion_tokens + tally["prompt_tokens"] + tally["completion_tokens"]
        cost = before.cost + tally["cost"]
        for name, spent, limit in (("max_tokens", tokens, budget.max_tokens), ("max_cost", cost, budget.max_cost)):
            if limit is not None and spent >= limit:
                raise InputError(
                    f"{ask.purpose}: demonstrations.teacher.budget.{name} = {limit!r} is reached, with {tokens:,} "
                    f"tokens and cost {cost:.6g} spent; raise it"
                )

    async def _answer(self, ask: _Ask, client: Any, prompt: str) -> None:
        """Send one prompt, and put what the model sent, and what it took, on disk and in the sums.

        Raises `Fault`, or `InputError` where the endpoint would refuse every other call as well. Errors are kept as
        text alone: the causes of the SDK's exceptions may hold the key.
        """
        import openai  # noqa: PLC0415  (imported by now)

        request, budget = self._request(prompt), self.budget
        sent = {name: value for name, value in request.items() if value is not None}
        try:
            # The raw response: the SDK's parsed one is anything from None to str for a body of another kind.
            response = await client.chat.completions.with_raw_response.create(**sent)
        except openai.APITimeoutError:
            raise Fault(f"timeout: no answer in {self.timeout_seconds:g} s") from None
        except openai.APIStatusError as error:
            fault = _shown(str(error))
            raise (self._refusal(fault) if error.status_code in (401, 403, 404) else Fault(fault)) from None
        except openai.APIConnectionError as error:
            raise Fault(f"connection: {_shown(str(error.__cause__ or error))}") from None
        text, finish_reason, usage = read_reply(response.text)
        estimate = (_estimated_tokens(request["messages"][0]["content"]), _estimated_tokens(text)) if text else (0, 0)
        prompt_tokens, completion_tokens = usage or estimate
        cost = (prompt_tokens * budget.prompt_price + completion_tokens * budget.completion_price) / 1e6
        ask.tally["prompt_tokens"] += prompt_tokens
        ask.tally["completion_tokens"] += completion_tokens
        ask.tally["cost"] += cost
        answer = ChatAnswer(text, finish_reason, prompt_tokens, completion_tokens, cost)
        self.store.put(request_key(request), request, answer)
        if text is None:
            raise Fault(f"no text in the answer: {_shown(response.text)}")
        ask.tally["calls"] += 1
        ask.tally["retries"] += response.retries_taken
        ask.take(prompt, text, finish_reason)

    def _refusal(self, fault: str) -> InputError:
        key = "the key in OPENAI_API_KEY" if self._key else "no key, because OPENAI_API_KEY is not set"
        return InputError(
            f"demonstrations.teacher.base_url = {self.base_url!r} refuses demonstrations.teacher.model = "
            f"{self.model!r} with {key} ({fault}); mend one of them"
        )
