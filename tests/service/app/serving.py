"""The application in a thread, on a free port, with models that stay; and requests to it byte by byte."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import uvicorn

from convrec.service.app.metrics import Metrics
from convrec.service.app.server import make_app, make_server
from convrec.service.app.service import Limits, Service
from convrec.service.feedback import FeedbackRecorder
from convrec.service.live import LiveModels
from convrec.service.recommender import Recommender
from convrec.service.served import ServedModel
from tests.service.recommending import served


class Fixed:
    """A source of models that stay, by role."""

    def __init__(self, models: Mapping[str, ServedModel]):
        self._models = models

    def wanted(self) -> dict[str, str]:
        return {role: model.version for role, model in self._models.items()}

    def load(self, version: str) -> ServedModel:
        return next(model for model in self._models.values() if model.version == version)


def make_service(
    models: Mapping[str, Recommender | ServedModel],
    recorder: FeedbackRecorder | None = None,
    limits: Limits = Limits(),  # noqa: B008  (frozen)
) -> Service:
    """Return a service with these models by role; a recommender's version is the name of its role."""
    made = {role: model if isinstance(model, ServedModel) else served(role, model) for role, model in models.items()}
    live = LiveModels(Fixed(made))
    live.update()
    return Service(live, limits, Metrics(), recorder)


class Served(NamedTuple):
    """A running server and its port."""

    server: uvicorn.Server
    port: int

    @property
    def num_connections(self) -> int:
        return len(self.server.server_state.connections)

    def send(self, data: bytes) -> socket.socket:
        """Open a connection, and send this."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall(data)
        return connection

    def ask(self, **question: Any) -> socket.socket:
        """Ask a question, and leave its answer to be read."""
        return self.send(request("POST /api/recommend", json.dumps(question).encode()))

    def text(self, path: str) -> bytes:
        """Return the whole response of a GET."""
        with self.send(request(f"GET {path}")) as connection:
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """Return status and JSON of a GET."""
        return answer(self.send(request(f"GET {path}")))


def request(line: str, body: bytes = b"", *headers: str) -> bytes:
    """Return a request; its length is told unless headers are given."""
    received = [f"Content-Length: {len(body)}", "Content-Type: application/json"]
    lines = [f"{line} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *(headers or received)]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body


def answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Return status and JSON of what a connection answers before the server closes it; it is then closed here too."""
    received = b""
    with connection, suppress(ConnectionResetError):  # it was closed before all was read that was sent
        while part := connection.recv(65536):
            received += part
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@contextmanager
def serve(service: Service, stop_seconds: int = 5, **options: Any) -> Iterator[Served]:
    """Serve this service until the block ends, by default with the page."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)  # who comes before the server is there waits
        server = make_server(make_app(service, **{"has_page": True, **options}), stop_seconds)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield Served(server, listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
            service.models.close()
