"""Reads the reply of a chat endpoint without trusting it: a usable answer, or a fault and the reaction to it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

MAX_RETRY_AFTER = 60.0  # seconds; a longer Retry-After is cut to this
MAX_TOKENS = 10**9  # of one call; a larger number is treated as an error


@dataclass(frozen=True)
class Fault:
    """The fault of one call; faults are counted by `kind`.

    Then: "retry" the call, count the prompt as "failed", or "stop" asking, since every other call would fail as well.
    """

    kind: str
    detail: str
    then: Literal["retry", "fail", "stop"] = "retry"
    retry_after: float = 0.0  # seconds

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


@dataclass(frozen=True)
class Reply:
    """A completion as sent: its text is None where it holds none, its usage where it reports none it can mean.

    `message` says what came instead of a text.
    """

    text: str | None
    finish_reason: str | None
    usage: tuple[int, int] | None  # tokens of the prompt, of the completion
    message: str = ""


def _field(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_TOKENS


def read_reply(body: str) -> Reply | None:
    """Return the first choice of a completion, or None for a body that is not a JSON object."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    choices = value.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    text = _field(_field(choice, "message"), "content")
    reason = _field(choice, "finish_reason")
    usage = value.get("usage")
    counts = (_field(usage, "prompt_tokens"), _field(usage, "completion_tokens"))
    return Reply(
        sendable(text) if isinstance(text, str) else None,
        sendable(reason) if isinstance(reason, str) else None,
        counts if all(map(_is_count, counts)) else None,
        "" if isinstance(text, str) else message_of(body),
    )


def sendable(text: str) -> str:
    """Return the text without lone surrogates, which JSON can encode and UTF-8 cannot."""
    return text.encode(errors="replace").decode()


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the endpoint's Retry-After in seconds, at most MAX_RETRY_AFTER, or 0."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if seconds >= 0:  # false for NaN
            return min(seconds, MAX_RETRY_AFTER)
    return 0.0


def message_of(body: str) -> str:
    """Return the message in an error's body, or else the body, on one line."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    message = _field(_field(value, "error"), "message") or _field(value, "message") or _field(value, "error")
    return " ".join((message if isinstance(message, str) else body).split())


def fault_of(status: int, headers: Mapping[str, str], body: str) -> Fault:
    """Return the fault for an HTTP status. The names of `headers` are in lower case or case-insensitive."""
    if status in (401, 403, 404):
        then: Literal["retry", "fail", "stop"] = "stop"
    elif status in (408, 409, 429) or status >= 500:
        then = "retry"
    else:
        then = "fail"
    return Fault(str(status), message_of(body), then, _retry_after(headers))
