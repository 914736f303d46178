"""A chat endpoint on this machine, over real HTTP, that misbehaves as told.

    with ChatServer([error(429), HANG]) as server:  # then it answers
        ...server.url, server.asked, server.most_at_once

The answer to a prompt is `answer_to(prompt)`, so that a test knows what is right in whatever order it arrives.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

PROMPT_TOKENS, COMPLETION_TOKENS = 7, 5  # the usage that it reports for every call
PATIENCE = 180.0  # seconds after which a test that waits for the server has failed
KEY = "sk-test-0123456789abcdef"
ASKED_FOR = [f"prompt {n}" for n in range(8)]


class Asked(NamedTuple):
    """One request as it arrived; header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        return self.body["messages"][-1]["content"]


@dataclass(frozen=True)
class Reply:
    """What goes over the wire; `lacks` bytes are promised and never sent."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    lacks: int = 0
    hangs: bool = False
    pause: float = 0.0  # seconds after each byte
    headers: dict[str, str] = field(default_factory=dict)


Decision = Reply | Callable[[Asked], Reply]


def answer_to(prompt: str) -> str:
    return f"answer to {prompt}"


ANSWERS = [answer_to(prompt) for prompt in ASKED_FOR]


def completion(content: object, usage: object = None, **changes: object) -> dict[str, Any]:
    """Return a completion in the format of the endpoint, with top-level fields changed at will."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
    return {"id": "x", "object": "chat.completion", "created": 0, "choices": [choice], "usage": usage, **changes}


def sent(value: object, **options: Any) -> Reply:
    return Reply(json.dumps(value).encode(), **options)


def reported() -> dict[str, int]:
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS}


def answered(asked: Asked) -> Reply:
    return sent(completion(answer_to(asked.prompt), reported()))


def error(status: int, message: str = "a scripted fault") -> Reply:
    return sent({"error": {"message": message, "type": "scripted"}}, status=status)


def refused_with_echo(asked: Asked) -> Reply:
    """Refuse the key and repeat it, as some proxies do."""
    return error(401, f"no such key: {asked.headers['authorization']}")


def truncated(asked: Asked) -> Reply:
    return Reply(answered(asked).body[:40], lacks=200)


def dripping(asked: Asked) -> Reply:
    return replace(answered(asked), pause=0.1)


HANG = Reply(hangs=True)
HTML = Reply(b"<html><body>Welcome to the proxy</body></html>", content_type="text/html")
BROKEN_JSON = Reply(b'{"id": "x", "choices": [{"mess')


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept, as a real endpoint does
    disable_nagle_algorithm = True
    wbufsize = -1
    chat: "ChatServer"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = Asked(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        with self.chat.counted(asked) as reply:  # over before a byte is sent: the client may ask again at once
            if reply.hangs:
                self.chat.released.wait()
                self.close_connection = True
                return
            time.sleep(self.chat.latency)
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body) + reply.lacks))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("retry-after-ms", "1")  # after an error, the client may try again at once
        self.end_headers()
        size = 1 if reply.pause else len(reply.body)
        for start in range(0, len(reply.body), size or 1):
            self.wfile.write(reply.body[start : start + size])
            self.wfile.flush()
            self.chat.released.wait(reply.pause)
        self.close_connection = self.close_connection or reply.lacks > 0

    def log_message(self, *_: object) -> None:
        pass


class ChatServer:
    """An endpoint that decides by `script`: a list, one entry a request, after which it answers; or a function.

    `together` holds each of the first so many requests until so many are there at once. `latency` is in seconds.
    """

    def __init__(
        self, script: Sequence[Decision] | Callable[[Asked], Reply] = (), *, latency: float = 0.0, together: int = 0
    ):
        self._script, self.latency, self._together = script, latency, together
        self._changed = threading.Condition()
        self._at_once = 0
        self.asked: list[Asked] = []
        self.most_at_once = 0
        self.released = threading.Event()

    def __enter__(self) -> "ChatServer":
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"chat": self}), False)
        self._http.request_queue_size = 256  # many clients connect at once
        self._http.handle_error = lambda *_: None  # a client that is killed leaves a broken pipe: no fault of this
        self._http.server_bind()
        self._http.server_activate()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()

    @property
    def prompts(self) -> list[str]:
        """The prompts in the order in which they arrived."""
        return [asked.prompt for asked in self.asked]

    def wait_for(self, requests: int) -> None:
        """Return as soon as so many requests have arrived."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= requests, PATIENCE), f"{len(self.asked)} arrived"

    @contextmanager
    def counted(self, asked: Asked) -> Iterator[Reply]:
        """Count a request as present, and yield the reply to it."""
        with self._changed:
            number = len(self.asked)
            self.asked.append(asked)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            self._changed.notify_all()
            if number < self._together:
                self._changed.wait_for(lambda: self.most_at_once >= self._together, PATIENCE)
        try:
            if callable(self._script):
                decision = self._script
            else:
                decision = self._script[number] if number < len(self._script) else answered
            yield decision(asked) if callable(decision) else decision
        finally:
            with self._changed:
                self._at_once -= 1
