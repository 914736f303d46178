"""Concurrent prompts to one chat model, within a budget; each prompt is paid for once."""

import asyncio
import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from convrec.demonstrations.calls import CallStore, ChatAnswer, Spent, request_key
from convrec.project.errors import InputError

logger = logging.getLogger(__name__)

REPORT_EVERY = 10.0  # seconds
KEYLESS = "none"  # sent to endpoints that need no key; the SDK requires one
SECRET_LENGTH = 16  # a shorter key is a placeholder for an endpoint without keys, and may occur in answers
DETAIL_LENGTH = 200  # characters of an endpoint's own words
MAX_TOKENS = 10**9  # of one call; a larger number is treated as an error
BYTES_PER_TOKEN = 3  # a cautious estimate: English has about 4


@dataclass(frozen=True)
class Budget:
    """Limits on all calls ever recorded in a file, and prices per million tokens in any currency."""

    max_tokens: int | None
    max_cost: float | None
    prompt_price: float
    completion_price: float

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        return (prompt_tokens * self.prompt_price + completion_tokens * self.completion_price) / 1e6


@dataclass
class Tally:
    """What the prompts of one ask took; `cached`, `failed` and `cut` count prompts, `calls` those sent and answered.

    `cut` are the answers that ended at max_completion_tokens; `retries` are those of the calls that were answered.
    """

    calls: int = 0
    cached: int = 0
    failed: int = 0
    retries: int = 0
    cut: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


class Reply(NamedTuple):
    """A completion as sent: its text is None where it holds none, its usage where it reports none it can mean."""

    text: str | None
    finish_reason: str | None
    usage: tuple[int, int] | None  # tokens of the prompt, of the completion


class Fault(Exception):
    """One prompt stays without an answer."""


def sendable(text: str) -> str:
    """Return the text without lone surrogates, which JSON can encode and UTF-8 cannot."""
    return text.encode(errors="replace").decode()


def estimated_tokens(text: str) -> int:
    """Return about how many tokens a text has, from its bytes in UTF-8."""
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


def _field(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _parse(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def read_reply(body: str) -> Reply:
    """Return the first choice of a completion, whatever the body holds."""
    value = _parse(body)
    choices = _field(value, "choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    text, reason = _field(_field(choice, "message"), "content"), _field(choice, "finish_reason")
    usage = _field(value, "usage")
    counts = (_field(usage, "prompt_tokens"), _field(usage, "completion_tokens"))
    return Reply(
        sendable(text) if isinstance(text, str) and text.strip() else None,
        sendable(reason) if isinstance(reason, str) else None,
        counts if all(type(count) is int and 0 <= count <= MAX_TOKENS for count in counts) else None,
    )


def message_of(body: str) -> str:
    """Return the message in an error's body, or else the body, on one line."""
    value = _parse(body)
    message = _field(_field(value, "error"), "message") or _field(value, "message") or _field(value, "error")
    return " ".join((message if isinstance(message, str) else body).split())


class _Ask:
    """One batch of prompts: their answers, what they took, and why it stopped early, if it did."""

    def __init__(self, prompts: Sequence[str], purpose: str, before: Spent):
        self.purpose, self.size, self.before = purpose, len(prompts), before
        self.times = Counter(prompts)  # identical prompts are asked once
        self.answers: dict[str, str] = {}
        self.tally = Tally()
        self.stopped: str | None = None
        self.fault = ""
        self.answered = 0
        self._next_report = time.monotonic() + REPORT_EVERY

    def take(self, prompt: str, text: str, finish_reason: str | None) -> None:
        self.answers[prompt] = text
        self.tally.cut += self.times[prompt] * (finish_reason == "length")
        self.answered += self.times[prompt]
        if time.monotonic() >= self._next_report:
            self.report()
            self._next_report = time.monotonic() + REPORT_EVERY

    def fail(self, prompt: str, fault: str, max_failed: float) -> None:
        if not self.fault:
            logger.warning("%s: a prompt failed: %s", self.purpose, fault)
        self.fault = fault
        self.tally.failed += self.times[prompt]
        if self.tally.failed > math.ceil(max_failed * self.size):
            self.stop(
                f"{self.purpose}: {self.tally.failed:,} of {self.size:,} prompts failed, more than "
                f"demonstrations.teacher.max_failed = {max_failed!r} allows; the last fault was {fault}; "
                "mend that, or allow more"
            )

    def stop(self, reason: str) -> None:
        """Start no more calls; the first reason counts."""
        self.stopped = self.stopped or reason

    def report(self) -> None:
        tally = self.tally
        logger.info(
            "%s: %s of %s answered (%s from the cache), %s tokens, cost %.2f",
            self.purpose,
            f"{self.answered:,}",
            f"{self.size:,}",
            f"{tally.cached:,}",
            f"{tally.prompt_tokens + tally.completion_tokens:,}",
            tally.cost,
        )

    def report_end(self) -> None:
        self.report()
        if self.tally.failed:
            logger.warning("%s: %d prompts failed; the last fault was %s", self.purpose, self.tally.failed, self.fault)
        if self.tally.cut:
            logger.warning(
                "%s: %s of %s answers end at demonstrations.teacher.max_completion_tokens, unfinished; raise it",
                self.purpose,
                f"{self.tally.cut:,}",
                f"{self.answered:,}",
            )


class ChatClient:
    """Asks one model behind an OpenAI-compatible endpoint. The key comes from OPENAI_API_KEY alone.

    Temperature None leaves the model's own. The SDK repeats a call up to `max_retries` times after a timeout, a lost
    connection, a rate limit or a server error. Of the prompts of one `ask`, a share of `max_failed` may stay without an
    answer. No call starts once all calls recorded in `store` have reached a limit of `budget`; those in flight may
    exceed it. A call that ends without a completion reports no usage, and is not counted.
    """

    def __init__(
        self,
        store: CallStore,
        *,
        model: str,
        base_url: str | None,
        temperature: float | None,
        max_completion_tokens: int,
        max_concurrency: int,
        timeout_seconds: float,
        max_retries: int,
        max_failed: float,
        budget: Budget,
    ):
        self._store, self._model, self._base_url = store, model, base_url
        self._temperature = None if temperature is None else float(temperature)  # 0 and 0.0 are one request
        self._max_completion_tokens, self._max_concurrency = max_completion_tokens, max_concurrency
        self._timeout_seconds, self._max_retries, self._max_failed = timeout_seconds, max_retries, max_failed
        self._budget = budget
        self._key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not self._key and base_url is None:
            raise InputError(
                "OPENAI_API_KEY is not set, and the default endpoint needs it: export it, or name an endpoint that "
                "needs none in demonstrations.teacher.base_url"
            )
        if not (self._key.isascii() and self._key.isprintable()):
            raise InputError("OPENAI_API_KEY holds characters that no key has; export it again")
        self._tallies: list[tuple[str, Tally]] = []

    def ask(self, prompts: Sequence[str], purpose: str) -> list[str | None]:
        """Return the answer to each prompt, sent as one user message, or None where it failed.

        Answers that the store holds are not asked for again, and each new one is on disk before the next call starts.
        Raises InputError if the endpoint refuses, too many prompts fail, or the budget ends; what is answered is kept.
        """
        ask = _Ask(prompts, purpose, self._store.spent())
        self._tallies.append((purpose, ask.tally))
        for prompt, times in ask.times.items():
            known = self._store.get(request_key(self._request(prompt)))
            if known is not None and known.text is not None:
                ask.tally.cached += times
                ask.take(prompt, known.text, known.finish_reason)
        pending = [prompt for prompt in ask.times if prompt not in ask.answers]
        try:
            if pending:
                asyncio.run(self._ask_all(ask, pending))
        finally:
            ask.report_end()
        if ask.stopped is not None:
            raise InputError(
                f"{ask.stopped}, and rerun: the answers to {ask.answered:,} of {ask.size:,} prompts are kept in "
                f"{self._store.path}, and only the rest is asked again"
            )
        return [ask.answers.get(prompt) for prompt in prompts]

    def spent(self) -> Spent:
        """Return what all calls took that the store holds, whoever made them."""
        return self._store.spent()

    def usage(self) -> dict[str, dict[str, float]]:
        """Return, by purpose, what this client's asks took: the fields of `Tally`."""
        sums: dict[str, Counter[str]] = {}
        for purpose, tally in self._tallies:
            sums.setdefault(purpose, Counter()).update(asdict(tally))
        return {purpose: dict(counts) for purpose, counts in sums.items()}

    def _request(self, prompt: str) -> dict[str, Any]:
        """Return what the answer depends on; neither the endpoint nor the key is part of it."""
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": sendable(prompt)}],
            "temperature": self._temperature,
            "max_completion_tokens": self._max_completion_tokens,
        }

    async def _ask_all(self, ask: _Ask, pending: list[str]) -> None:
        import openai  # noqa: PLC0415  (a second to import; only a teacher that asks needs it)

        async with openai.AsyncOpenAI(
            api_key=self._key or KEYLESS,
            base_url=self._base_url,
            max_retries=self._max_retries,
            timeout=self._timeout_seconds,
        ) as client:
            left = iter(pending)
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(self._max_concurrency, len(pending))):
                    workers.create_task(self._work(ask, client, left))

    async def _work(self, ask: _Ask, client: Any, left: Iterator[str]) -> None:
        """Ask for one prompt after the other, until none is left or the ask is stopped.

        Errors are kept as text alone: the causes of the SDK's exceptions may hold the key.
        """
        while ask.stopped is None and (prompt := next(left, None)) is not None:
            try:
                self._check_budget(ask)
                await self._answer(ask, client, prompt)
            except Fault as fault:
                ask.fail(prompt, str(fault), self._max_failed)
            except InputError as error:  # a limit, a refusal, or the store's, for instance a full disk
                ask.stop(str(error))

    def _check_budget(self, ask: _Ask) -> None:
        before, tally, budget = ask.before, ask.tally, self._budget
        tokens = before.prompt_tokens + before.completion_tokens + tally.prompt_tokens + tally.completion_tokens
        cost = before.cost + tally.cost
        for name, spent, limit in (("max_tokens", tokens, budget.max_tokens), ("max_cost", cost, budget.max_cost)):
            if limit is not None and spent >= limit:
                raise InputError(
                    f"{ask.purpose}: demonstrations.teacher.budget.{name} = {limit!r} is reached, with {tokens:,} "
                    f"tokens and cost {cost:.6g} spent; raise it"
                )

    async def _answer(self, ask: _Ask, client: Any, prompt: str) -> None:
        """Send one prompt, and put what the model sent, and what it took, on disk and in the sums."""
        request = self._request(prompt)
        body, retries = await self._send(client, request)
        reply = read_reply(body)
        is_secret = len(self._key) >= SECRET_LENGTH
        text = self._redact(reply.text) if reply.text and is_secret else reply.text
        finish_reason = self._redact(reply.finish_reason) if reply.finish_reason and is_secret else reply.finish_reason
        asked = request["messages"][0]["content"]
        estimate = (estimated_tokens(asked), estimated_tokens(text)) if text else (0, 0)
        prompt_tokens, completion_tokens = reply.usage or estimate
        cost = self._budget.cost(prompt_tokens, completion_tokens)
        answer = ChatAnswer(text, finish_reason, prompt_tokens, completion_tokens, cost)
        ask.tally.prompt_tokens += prompt_tokens
        ask.tally.completion_tokens += completion_tokens
        ask.tally.cost += cost
        self._store.put(request_key(request), request, answer)
        if text is None:
            what = f"an empty answer, finish_reason {finish_reason!r}" if finish_reason else message_of(body)
            raise Fault(f"no text: {self._shown(what)}")
        ask.tally.calls += 1
        ask.tally.retries += retries
        ask.take(prompt, text, finish_reason)

    async def _send(self, client: Any, request: dict[str, Any]) -> tuple[str, int]:
        """Return the body that comes back, and the number of retries.

        Raises `Fault`, or `InputError` where the endpoint would refuse every other call as well.
        """
        import openai  # noqa: PLC0415  (imported by now)

        sent = {name: value for name, value in request.items() if value is not None}
        try:
            # The raw response: the SDK's parsed one is anything from None to str for a body of another kind.
            response = await client.chat.completions.with_raw_response.create(**sent)
            return response.text, response.retries_taken
        except openai.APITimeoutError:
            raise Fault(f"timeout: no answer in {self._timeout_seconds:g} s") from None
        except openai.APIStatusError as error:
            fault = self._shown(f"{error.status_code}: {message_of(error.response.text)}")
            raise (self._refusal(fault) if error.status_code in (401, 403, 404) else Fault(fault)) from None
        except openai.APIConnectionError as error:
            raise Fault(f"connection: {self._shown(str(error.__cause__ or error))}") from None

    def _refusal(self, fault: str) -> InputError:
        endpoint = f"demonstrations.teacher.base_url = {self._base_url!r}"
        if fault.startswith("404"):
            model = f"demonstrations.teacher.model = {self._model!r}"
            return InputError(f"{model} is not found at {endpoint} ({fault}); mend one of them")
        state = "the key in OPENAI_API_KEY" if self._key else "a call without a key (OPENAI_API_KEY is not set)"
        return InputError(f"{endpoint} refuses {state} ({fault}); export OPENAI_API_KEY with a key of that endpoint")

    def _redact(self, text: str) -> str:
        """Return the text without the key, as it is or as JSON writes it."""
        if not self._key:
            return text
        return text.replace(self._key, "[key]").replace(json.dumps(self._key)[1:-1], "[key]")

    def _shown(self, text: str) -> str:
        # Redacted first: a cut through the key would leave its half.
        return self._redact(text)[:DETAIL_LENGTH]
