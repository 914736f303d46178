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

from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from convrec.service.app.metrics import Metrics

logger = logging.getLogger(__name__)

MAX_BODY = 1_000_000  # bytes
REQUEST_ID = "X-Request-ID"
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_QUIET = ("/health", "/ready", "/metrics")  # asked every few seconds by machines
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src data:; frame-ancestors 'none'; form-action 'self'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}


class Edge:
    """ASGI middleware around the application.

    A request has the id of its `X-Request-ID`, else a new one; the response has it, too, beside security headers. A
    body over the limit gets 413. If the application fails, the answer is 500 without details; if it is
    cancelled, because the server stops, 503. `is_logged` writes a log line for each request.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, is_logged: bool):
        self._app, self._metrics, self._is_logged = app, metrics, is_logged

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(REQUEST_ID, "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        facts = {"request_id": request_id, "method": scope["method"], "path": scope["path"]}
        scope["facts"] = facts
        start, status = time.perf_counter(), 0

        async def extended(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update({**_HEADERS, REQUEST_ID: request_id})
            await send(message)

        async def end(error: BaseException, code: int, reason: str) -> None:
            if status:  # the response has begun
                raise error
            await JSONResponse({"error": reason}, code)(scope, receive, extended)

        try:
            await self._app(scope, _limited(headers, receive), extended)
        except asyncio.CancelledError as error:
            await end(error, 503, "the server is shutting down; try again later")
        except Exception as error:
            logger.exception("the request failed", extra={"facts": {"request_id": request_id}})
            await end(error, 500, "the server failed; see its log")
        finally:
            self._count(scope, facts, status, time.perf_counter() - start)

    def _count(self, scope: Scope, facts: Mapping[str, Any], status: int, seconds: float) -> None:
        path = getattr(scope.get("route"), "path", "other")
        self._metrics.requests.labels(path, str(status)).inc()
        if path == "/recommend" and status == 200:
            self._metrics.seconds.observe(seconds)
        if self._is_logged and path not in _QUIET:
            logger.info("request", extra={"facts": {**facts, "status": status, "seconds": round(seconds, 4)}})


def _limited(headers: Headers, receive: Receive) -> Receive:
    """Return a `receive` that ends a large body. It counts the received bytes, whatever the headers say."""
    size, told = 0, int(headers.get("Content-Length", 0))

    async def limited() -> Message:
        nonlocal size
        message = await receive() if told <= MAX_BODY else {}
        size += len(message.get("body", b""))
        if max(size, told) > MAX_BODY:
            reason = f"a request is limited to {MAX_BODY:,} bytes; shorten it"
            raise HTTPException(413, reason, {"Connection": "close"})  # the rest of the body is not read
        return message

    return limited


def facts_of(request: Request) -> dict[str, Any]:
    """Return what is known of a request, for its log line; handlers add to it."""
    return request.scope["facts"]


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
