"""The edge of the service: limits of each request, headers of each response, and a log line and a count for it."""

import asyncio
import json
import logging
import re
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from convrec.service.app.keys import Keys
from convrec.service.app.metrics import Metrics

logger = logging.getLogger(__name__)

MAX_BODY = 1_000_000  # bytes
_BODY_SECONDS = 10.0  # in which a body must arrive
REQUEST_ID = "X-Request-ID"
RETRY = {"Retry-After": "2"}  # of a 429
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_QUIET = ("/health", "/ready", "/metrics")  # asked every few seconds by machines, without a key
_CLOSE = {"Connection": "close"}  # the rest of a body is not read
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src data:; frame-ancestors 'none'; form-action 'self'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}


class Edge:
    """ASGI middleware around the application.

    A request has the id of its `X-Request-ID`, else a new one; the response has it, too, beside security headers. With
    keys, a request without one gets 401 before its body is read. At most `max_bodies` bodies are read at a time; more
    get 429. A body over the limit gets 413, a slow one 408, a compressed one 415. If the application fails, the answer
    is 500 without details; if it is cancelled, because the server stops, 503. `is_logged` writes a log line for each
    request.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, is_logged: bool, keys: Keys | None, max_bodies: int):
        self._app, self._metrics, self._is_logged = app, metrics, is_logged
        self._keys, self._max_bodies, self._num_bodies = keys, max_bodies, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(REQUEST_ID, "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        facts = {"request_id": request_id, "method": scope["method"], "path": scope["path"]}
        scope["facts"] = facts  # handlers add to them
        start, status = time.perf_counter(), 0

        async def extended(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update({**_HEADERS, REQUEST_ID: request_id})
            await send(message)

        async def end(error: BaseException, code: int, reason: str, more: Mapping[str, str] | None = None) -> None:
            if status:  # the response has begun
                raise error
            await JSONResponse({"error": reason}, code, more)(scope, receive, extended)

        if "Host" not in headers:  # HTTP/1.0, as some probes send it; browsers, whose host is checked, always send one
            scope["headers"] = [*scope["headers"], (b"host", b"localhost")]
        try:
            if self._keys is not None and scope["path"] not in _QUIET:
                facts["key"] = self._keys.check(headers.get("Authorization", ""))
            is_read = scope["method"] == "POST" and scope["path"] not in _QUIET
            read = await self._body(headers, receive) if is_read else None
            await self._app(scope, receive if read is None else _again(read, receive), extended)
        except HTTPException as error:  # of this class; the application answers its own
            await end(error, error.status_code, error.detail, error.headers)
        except asyncio.CancelledError as error:
            await end(error, 503, "the server is shutting down; try again later")
        except Exception as error:
            logger.exception("the request failed", extra={"facts": {"request_id": request_id}})
            await end(error, 500, "the server failed; see its log")
        finally:
            self._count(scope, facts, status, time.perf_counter() - start)

    def _count(self, scope: Scope, facts: Mapping[str, Any], status: int, seconds: float) -> None:
        known = {getattr(route, "path", "") for route in scope["app"].routes}
        path = scope["path"] if scope["path"] in known else "other"
        self._metrics.requests.labels(path, str(status)).inc()
        if path == "/recommend" and status == 200:
            self._metrics.seconds.observe(seconds)
        if self._is_logged and path not in _QUIET:
            logger.info("request", extra={"facts": {**facts, "status": status, "seconds": round(seconds, 4)}})

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """Return the whole body. The received bytes count, whatever the headers say."""
        encoding = headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            reason = f"Content-Encoding: {encoding:.40} is not supported; send the body uncompressed"
            raise HTTPException(415, reason, {**_CLOSE, "Accept-Encoding": "identity"})
        if self._num_bodies >= self._max_bodies:
            raise HTTPException(429, "too many requests are arriving; try again later", {**_CLOSE, **RETRY})
        body, has_more = bytearray(), int(headers.get("Content-Length", 0)) <= MAX_BODY
        self._num_bodies += 1
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                while has_more and len(body) <= MAX_BODY:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPException(400, "the connection was closed before the body had arrived")
                    body += message.get("body", b"")
                    if not message.get("more_body", False) and len(body) <= MAX_BODY:
                        return bytes(body)
        except TimeoutError:
            raise HTTPException(408, f"the body has not arrived within {_BODY_SECONDS:g} s", _CLOSE) from None
        finally:
            self._num_bodies -= 1
        raise HTTPException(413, f"a request is limited to {MAX_BODY:,} bytes; shorten it", _CLOSE)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` for a request whose body was read."""
    parts = [body]

    async def again() -> Message:
        return {"type": "http.request", "body": parts.pop()} if parts else await receive()

    return again


class JsonLines(logging.Formatter):
    """Formats a log record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        time_of = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = {"time": time_of, "level": record.levelname.lower(), "message": record.getMessage()}
        facts |= getattr(record, "facts", {})
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps(facts, ensure_ascii=False, default=str)


def log_as_json() -> None:
    """Write all log lines of this process as JSON."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines())
