"""Limits of every request (size, time, host name) and security headers of every response."""

import asyncio
from collections.abc import Collection

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_BODY = 1_000_000  # bytes
BODY_SECONDS = 20  # for the whole body of a request
HEAD_SECONDS = 10  # for the request line and the headers
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src data:; frame-ancestors 'none'; form-action 'self'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}


class _Refused(Exception):
    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status


class Guard:
    """ASGI middleware that reads each request's whole body before it passes the request to the application.

    The received bytes are counted; the headers are not trusted. A body over the limit gets 413, a slow one 408, and the
    connection is closed. With `hosts`, requests for any other host get 421.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None = None):
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _with_headers(send)
        try:
            await self._answer(scope, receive, send)
        except _Refused as refused:
            closing = {"Connection": "close"}  # the rest of the body is not read
            await JSONResponse({"error": str(refused)}, refused.status, closing)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        self._check_host(headers)
        try:
            body = await self._body(headers, receive)
            if body is not None:
                await self._app(scope, _replay(body, receive), send)
        except asyncio.CancelledError:
            raise _Refused(503, "the server is shutting down; try again later") from None

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host", "").lower()
        host = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self._hosts is not None and host not in self._hosts:
            raise _Refused(421, f"Host {host!r} is not served; use {', '.join(self._hosts)}")

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """Return the body; None if the client disconnected before its end."""
        length = headers.get("content-length", "0")
        too_long = _Refused(413, f"a request is limited to {MAX_BODY:,} bytes; shorten it")
        if not length.isdecimal() or int(length) > MAX_BODY:
            raise too_long
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > MAX_BODY:
                        raise too_long
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise _Refused(408, f"the request did not arrive within {BODY_SECONDS:g} s; send it again") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first returns the whole body."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


def _with_headers(send: Send) -> Send:
    async def extended(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(_HEADERS)
        await send(message)

    return extended


class TimedHead(H11Protocol):
    """uvicorn's connection with a timeout for the request line and headers, which uvicorn does not limit."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the timeout when the connection begins to wait for a request, and stop it during a response."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
