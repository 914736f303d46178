"""Concurrent prompts to one chat model, within a budget; each prompt is paid for once."""

import asyncio
import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import tenacity

from convrec.demonstrations.budget import Budget, Ledger, estimated_tokens
from convrec.demonstrations.calls import CallStore, ChatAnswer, Spent, request_key
from convrec.demonstrations.replies import Fault, Reply, fault_of, message_of, read_reply, sendable
from convrec.errors import InputError

__all__ = ["Budget", "ChatClient"]

logger = logging.getLogger(__name__)

BACK_OFF = tenacity.wait_random_exponential(multiplier=1, max=60)  # seconds
TELL_EVERY = 10.0  # seconds
KEYLESS = "none"  # sent to endpoints that need no key; the SDK requires one
SECRET_LENGTH = 16  # a shorter key is a placeholder for an endpoint without keys, and may occur in answers
DETAIL_LENGTH = 200  # characters of an endpoint's own words


@dataclass
class Tally:
    """What the prompts of one ask took; `cached`, `failed` and `cut` count prompts, `calls` those sent and answered.

    `cut` are the answers that ended at max_completion_tokens.
    """

    calls: int = 0
    cached: int = 0
    failed: int = 0
    retries: int = 0
    cut: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


class _Pace:
    """Limits how often a message is logged: at most every TELL_EVERY seconds."""

    def __init__(self, last: float):
        self._last = last

    def due(self) -> bool:
        now = time.monotonic()
        if now - self._last < TELL_EVERY:
            return False
        self._last = now
        return True


class _Ask:
    """One batch of prompts, their answers, and the reason if it stopped early."""

    def __init__(self, prompts: Sequence[str], purpose: str, max_failed: float, ledger: Ledger):
        self._purpose, self._max_failed, self.ledger = purpose, max_failed, ledger
        self.size = len(prompts)
        self.times = Counter(prompts)  # identical prompts are asked once
        self.answers: dict[str, str] = {}
        self.tally = Tally()
        self.stopped = asyncio.Event()
        self.reason: Callable[[], str] | None = None
        self._answered = 0
        self._faults: Counter[str] = Counter()
        self._last_fault: Fault | None = None
        self._progress, self._warnings = _Pace(time.monotonic()), _Pace(float("-inf"))

    def stop(self, reason: Callable[[], str]) -> None:
        """Start no more calls; the first reason counts, and is worded when the calls in flight have ended."""
        if self.reason is None:
            self.reason = reason
        self.stopped.set()

    def take(self, prompt: str, answer: ChatAnswer) -> None:
        self.answers[prompt] = answer.text
        self.tally.cut += self.times[prompt] * (answer.finish_reason == "length")
        self._answered += self.times[prompt]
        if self._progress.due():
            self._tell_progress()

    def fail(self, prompt: str) -> None:
        self.tally.failed += self.times[prompt]
        if self.tally.failed > math.ceil(self._max_failed * self.size):
            self.stop(self._too_many_failed)

    def _too_many_failed(self) -> str:
        return (
            f"{self._purpose}: {self.tally.failed:,} of {self.size:,} prompts failed, more than "
            f"demonstrations.teacher.max_failed = {self._max_failed!r} allows; the last fault was {self._last_fault}; "
            "mend that, or allow more"
        )

    def stop_at_limit(self, limit: str, value: float | None) -> None:
        self.stop(
            lambda: (
                f"{self._purpose}: demonstrations.teacher.budget.{limit} = {value!r} leaves no room for the next call, "
                f"with {self.ledger.tokens:,} tokens and cost {self.ledger.cost:.6g} spent; raise it"
            )
        )

    def warn(self, fault: Fault) -> None:
        """Count a fault; log the first at once and others from time to time."""
        self._faults[fault.kind] += 1
        self._last_fault = fault
        if self._warnings.due():
            self._tell_faults()

    def _tell_faults(self) -> None:
        if self._faults:
            counts = ", ".join(f"{count:,} x {kind}" for kind, count in self._faults.most_common())
            logger.warning("%s: faults: %s; the last was %s", self._purpose, counts, self._last_fault)
            self._faults.clear()

    def _tell_progress(self) -> None:
        tally = self.tally
        logger.info(
            "%s: %s of %s answered (%s from the cache), %s tokens, cost %.2f",
            self._purpose,
            *(
                f"{n:,}"
                for n in (self._answered, self.size, tally.cached, tally.prompt_tokens + tally.completion_tokens)
            ),
            tally.cost,
        )

    def tell_end(self) -> None:
        self._tell_faults()
        self._tell_progress()
        if self.tally.cut:
            logger.warning(
                "%s: %s of %s answers end at demonstrations.teacher.max_completion_tokens, unfinished; raise it",
                self._purpose,
                f"{self.tally.cut:,}",
                f"{self._answered:,}",
            )

    def error(self, store: CallStore) -> InputError | None:
        """Return why the ask stopped early, with what is kept, or None."""
        if self.reason is None:
            return None
        return InputError(
            f"{self.reason()}, and rerun: the answers to {self._answered:,} of {self.size:,} prompts are kept in "
            f"{store.path}, and only the rest is asked again"
        )


class ChatClient:
    """Asks one model behind an OpenAI-compatible endpoint. The key comes from OPENAI_API_KEY alone.

    Temperature None leaves the model's own. `timeout_seconds` bounds a call as a whole. Of the prompts of one `ask`,
    a share of `max_failed` may stay without an answer. The limits of `budget` hold for all calls recorded in `store`;
    a call that ends without a completion (a timeout, a lost connection) reports no usage, and is not counted.
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
        ask = _Ask(prompts, purpose, self._max_failed, Ledger(self._budget, self._store.spent()))
        self._tallies.append((purpose, ask.tally))
        pending = [prompt for prompt in ask.times if not self._recall(ask, prompt)]
        try:
            if pending:
                asyncio.run(self._ask_all(ask, pending))
        finally:
            ask.tell_end()
        if error := ask.error(self._store):
            raise error
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

    def _recall(self, ask: _Ask, prompt: str) -> bool:
        answer = self._store.get(request_key(self._request(prompt)))
        if answer is None:
            return False
        ask.tally.cached += ask.times[prompt]
        ask.take(prompt, answer)
        return True

    async def _ask_all(self, ask: _Ask, pending: list[str]) -> None:
        import openai  # noqa: PLC0415  (a second to import; only a teacher that asks needs it)

        # One limit on a call's time, `timeout_seconds`, and one place for retries: the SDK's own are off.
        async with openai.AsyncOpenAI(
            api_key=self._key or KEYLESS, base_url=self._base_url, max_retries=0, timeout=None
        ) as client:
            left = iter(pending)
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(self._max_concurrency, len(pending))):
                    workers.create_task(self._work(ask, client, left))

    async def _work(self, ask: _Ask, client: Any, left: Iterator[str]) -> None:
        """Ask for one prompt after the other, until none is left or the ask is stopped."""
        for prompt in left:
            try:
                await self._answer(ask, client, prompt)
            except InputError as error:  # of the store, for instance a full disk
                ask.stop(partial(str, error))
            if ask.stopped.is_set():
                return

    async def _answer(self, ask: _Ask, client: Any, prompt: str) -> None:
        """Send one prompt, with retries, and record the outcome."""

        async def sleep(seconds: float) -> None:  # cut short when the ask stops: `_call` then makes no call
            with suppress(TimeoutError):
                await asyncio.wait_for(ask.stopped.wait(), seconds)

        def before_sleep(_: tenacity.RetryCallState) -> None:
            ask.tally.retries += 1

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_result(lambda outcome: isinstance(outcome, Fault) and outcome.then == "retry"),
            stop=tenacity.stop_after_attempt(self._max_retries + 1),
            wait=_wait,
            sleep=sleep,
            before_sleep=before_sleep,
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        )
        outcome: ChatAnswer | Fault | None = await retrying(self._call, ask, client, prompt)
        if isinstance(outcome, ChatAnswer):
            ask.take(prompt, outcome)
        elif outcome is not None:
            if outcome.then == "stop":
                ask.stop(partial(self._refusal, outcome))
            ask.fail(prompt)

    async def _call(self, ask: _Ask, client: Any, prompt: str) -> ChatAnswer | Fault | None:
        """Return the recorded answer to one call, or its fault, or None if the ask was stopped before it."""
        request = self._request(prompt)
        needed = (estimated_tokens(request["messages"][0]["content"]), self._max_completion_tokens)
        limit = await ask.ledger.reserve(*needed)
        if limit is not None:
            ask.stop_at_limit(limit, getattr(self._budget, limit))
            return None
        try:
            if ask.stopped.is_set():
                return None
            reply = await self._send(client, request)
            outcome = self._record(ask, request, reply) if isinstance(reply, Reply) else reply
        finally:
            ask.ledger.settle(*needed)
        if isinstance(outcome, Fault):
            ask.warn(outcome)
        return outcome

    def _record(self, ask: _Ask, request: dict[str, Any], reply: Reply) -> ChatAnswer | Fault:
        """Put what the model sent, and what it took, on disk and in the sums."""
        key = request_key(request)
        text = reply.text if reply.text and not reply.text.isspace() else None
        if reply.usage is not None:
            prompt_tokens, completion_tokens = reply.usage
        elif text is not None:
            prompt_tokens = estimated_tokens(request["messages"][0]["content"])
            completion_tokens = estimated_tokens(text)
        else:
            prompt_tokens = completion_tokens = 0
        cost = self._budget.cost(prompt_tokens, completion_tokens)
        ask.ledger.spend(prompt_tokens, completion_tokens, cost)
        ask.tally.prompt_tokens += prompt_tokens
        ask.tally.completion_tokens += completion_tokens
        ask.tally.cost += cost
        if text is None:
            if reply.usage is not None:
                self._store.charge(key, request, prompt_tokens, completion_tokens, cost)
            message = reply.message or f"an empty answer, finish_reason {reply.finish_reason!r}"
            return self._without_key(Fault("no text", message))
        answer = ChatAnswer(text, reply.finish_reason, prompt_tokens, completion_tokens, cost)
        self._store.put(key, request, answer)
        ask.tally.calls += 1
        return answer

    async def _send(self, client: Any, request: dict[str, Any]) -> Reply | Fault:
        """Return what comes back over the wire, free of the key.

        Faults are returned, not raised, so that no exception of the SDK, whose causes may hold the key, goes further.
        """
        import openai  # noqa: PLC0415  (imported by now)

        sent = {name: value for name, value in request.items() if value is not None}
        try:
            async with asyncio.timeout(self._timeout_seconds):
                # The raw response: the SDK's parsed one is anything from None to str for a body of another kind.
                response = await client.chat.completions.with_raw_response.create(**sent)
            body = response.text
        except TimeoutError:
            return Fault("timeout", f"no answer in {self._timeout_seconds:g} s")
        except openai.APIStatusError as error:
            response = error.response
            return self._without_key(fault_of(response.status_code, response.headers, response.text))
        except openai.APIConnectionError as error:
            return self._without_key(Fault("connection", str(error.__cause__ or error)))
        reply = read_reply(body)
        if reply is None:
            return self._without_key(Fault("no JSON", message_of(body)))
        if len(self._key) < SECRET_LENGTH:
            return reply
        text, reason = (None if words is None else self._redact(words) for words in (reply.text, reply.finish_reason))
        return replace(reply, text=text, finish_reason=reason)

    def _redact(self, text: str) -> str:
        """Return the text without the key, as it is or as JSON writes it."""
        if not self._key:
            return text
        return text.replace(self._key, "[key]").replace(json.dumps(self._key)[1:-1], "[key]")

    def _without_key(self, fault: Fault) -> Fault:
        # Redacted first: a cut through the key would leave its half.
        return replace(fault, detail=self._redact(fault.detail)[:DETAIL_LENGTH])

    def _refusal(self, fault: Fault) -> str:
        endpoint = f"demonstrations.teacher.base_url = {self._base_url!r}"
        if fault.kind == "404":
            return (
                f"demonstrations.teacher.model = {self._model!r} is not found at {endpoint} ({fault}); mend one of them"
            )
        state = "the key in OPENAI_API_KEY" if self._key else "a call without a key (OPENAI_API_KEY is not set)"
        return f"{endpoint} refuses {state} ({fault}); export OPENAI_API_KEY with a key of that endpoint"


def _wait(state: tenacity.RetryCallState) -> float:
    """Return the seconds before the next attempt: never sooner than asked, and spread, so that not all come at once."""
    fault = state.outcome.result() if state.outcome else None
    return (fault.retry_after if isinstance(fault, Fault) else 0.0) + BACK_OFF(state)
