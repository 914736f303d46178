"""An HTTP server in place of vLLM's, for its faults: it decodes with transformers, and fails when it is told to."""

import json
import select
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from convrec.generation.vllm_requests import requested_list
from tests.service.recommending import make_recommender

RECOMMENDER = make_recommender()
_DECODING = threading.Lock()


class StandIn:
    """A server of the model `name` on a free port of 127.0.0.1, until `stop`."""

    def __init__(self, name: str, port: int = 0):
        self.name, self.status, self.is_cut, self.is_garbled = name, 200, False, False
        self.headers: dict[str, str] = {}  # of the last request
        self.begun, self.left = 0, 0  # lists that were asked for; clients that left before their list
        self.pause = 0.0  # seconds after each byte of an answer
        self.may_answer, self.stopped = threading.Event(), threading.Event()
        self.may_answer.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"stand_in": self}))
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.status = 503  # also for connections that are still open
        self.stopped.set()
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    stand_in: StandIn

    def do_GET(self) -> None:
        self._send(self.stand_in.status, {"data": [{"id": self.stand_in.name}]})

    def do_POST(self) -> None:
        stand_in = self.stand_in
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        stand_in.headers = {name.lower(): value for name, value in self.headers.items()}
        stand_in.begun += 1
        while not stand_in.may_answer.wait(0.01):
            readable, _, _ = select.select([self.connection], [], [], 0)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                stand_in.left += 1
                return
        if body["model"] != stand_in.name:
            self._send(404, {"error": {"message": "no such model"}})
        elif stand_in.status != 200:
            self._send(stand_in.status, {"error": {"message": "told to fail"}})
        else:
            self._send(200, {"choices": [{"text": "", "token_ids": self._tokens(body)}]})

    def _tokens(self, body: dict[str, Any]) -> list[int]:
        request, (end,) = requested_list(body["vllm_xargs"]), body["stop_token_ids"]
        assert request is not None and body["temperature"] == 0 and body["return_token_ids"]
        with _DECODING:
            (tokens,) = RECOMMENDER._engine.complete([body["prompt"]], [request])
        tokens = tokens[: tokens.index(end) + 1]
        assert len(tokens) <= body["max_tokens"]
        return tokens[:-1] if self.stand_in.is_cut else tokens

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        content = b"{" if self.stand_in.is_garbled else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Location", f"/elsewhere{self.path}")  # followed by none
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(BrokenPipeError):  # the client has waited long enough
            for byte in content:
                self.wfile.write(bytes([byte]))
                self.stand_in.stopped.wait(self.stand_in.pause)

    def log_message(self, *_: object) -> None:
        pass
