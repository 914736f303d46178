"""A chat endpoint on this machine, over real HTTP, that misbehaves as told.

    with ChatServer([error(429, {"Retry-After": "0"}), HANG]) as server:  # then it answers
        ...server.url, server.asked, server.most_at_once

The answer to a prompt is `answer_to(prompt)`, so that a test knows what is right in whatever order it arrives.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROMPT_TOKENS, COMPLETION_TOKENS = 7, 5  # the usage that it reports for every call
PATIENCE = 180.0  # seconds after which a test that waits for the server has failed
KEY = "sk-test-0123456789abcdef"


@dataclass(frozen=True)
class Asked:
    """One request as it arrived; `number` counts from 0."""

    number: int
    path: str
    headers: dict[str, str]  # by lower-case name
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        return self.body["messages"][-1]["content"]


@dataclass(frozen=True)
class Reply:
    """What goes over the wire; `lacks` bytes are promised and never sent."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    lacks: int = 0
    hangs: bool = False


Decision = Reply | Callable[[Asked], Reply]


def answer_to(prompt: str) -> str:
    return f"answer to {prompt}"


ASKED_FOR = [f"prompt {n}" for n in range(8)]
ANSWERS = [answer_to(prompt) for prompt in ASKED_FOR]


def completion(content: object, usage: object = None, **changes: object) -> dict[str, Any]:
    """Return a completion in the format of the endpoint, with top-level fields changed at will."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage} | (
        changes
    )


def sent(value: object, **options: Any) -> Reply:
    return Reply(json.dumps(value).encode(), **options)


def reported(prompt_tokens: int = PROMPT_TOKENS, completion_tokens: int = COMPLETION_TOKENS) -> dict[str, int]:
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


def answered(asked: Asked) -> Reply:
    return sent(completion(answer_to(asked.prompt), reported()))


def error(status: int, message: str = "a scripted fault") -> Reply:
    """Return an error after which the client may try again at once."""
    body = {"error": {"message": message, "type": "scripted"}}
    return sent(body, status=status, headers={"retry-after-ms": "1"})


def refused_with_echo(asked: Asked) -> Reply:
    """Refuse the key and repeat it, as some proxies do."""
    return error(401, f"no such key: {asked.headers['authorization']}")


def truncated(asked: Asked) -> Reply:
    return Reply(answered(asked).body[:40], lacks=200)


HANG = Reply(hangs=True)
HTML = Reply(b"<html><body>Welcome to the proxy</body></html>", content_type="text/html")
BROKEN_JSON = Reply(b'{"id": "x", "choices": [{"mess')
NO_CHOICES = sent(completion("", choices=[]))
NULL_CONTENT = sent(completion(None, reported()))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # many clients connect at once

    def __init__(self, chat: "ChatServer"):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.chat = chat

    def handle_error(self, *_: object) -> None:
        """A client that is killed or gives up leaves a broken pipe: no fault of the server."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept, as a real endpoint does
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat = self.server.chat
        reply = chat.enter(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        try:
            if reply.hangs:
                chat.released.wait()
                self.close_connection = True
                return
            time.sleep(chat.latency)
        finally:
            chat.leave()  # before a byte is sent: the client may ask again as soon as it has read
        self._write(reply)

    def _write(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body) + reply.lacks))
        self.end_headers()
        self.wfile.write(reply.body)
        self.close_connection = self.close_connection or reply.lacks > 0

    def log_message(self, *_: object) -> None:
        pass


class ChatServer:
    """An endpoint that decides by `script`: a list, one entry a request, after which it answers; or a function.

    `together` holds each of the first so many requests until so many are there at once. `latency` is in seconds.
    """

    def __init__(
        self,
        script: Sequence[Decision] | Callable[[Asked], Reply] = (),
        *,
        latency: float = 0.0,
        together: int = 0,
    ):
        self._script, self.latency, self._together = script, latency, together
        self._changed = threading.Condition()
        self._at_once = 0
        self.asked: list[Asked] = []
        self.most_at_once = 0
        self.released = threading.Event()

    def __enter__(self) -> "ChatServer":
        self._http = _Server(self)
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

    def enter(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Reply:
        with self._changed:
            asked = Asked(len(self.asked), path, headers, body)
            self.asked.append(asked)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            self._changed.notify_all()
            if asked.number < self._together:
                self._changed.wait_for(lambda: self.most_at_once >= self._together, PATIENCE)
        if callable(self._script):
            return self._script(asked)
        decision = self._script[asked.number] if asked.number < len(self._script) else answered
        return decision(asked) if callable(decision) else decision

    def leave(self) -> None:
        with self._changed:
            self._at_once -= 1
