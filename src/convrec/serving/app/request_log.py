"""Request ids, a log line and a count for each request."""

import json
import logging
import re
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from convrec.serving.app.metrics import Metrics

logger = logging.getLogger(__name__)

HEADER = "X-Request-ID"
FAILED = "the server failed; see its log"
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_QUIET = ("/health", "/ready", "/metrics")  # asked every few seconds by machines


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


def facts_of(request: Request) -> dict[str, Any]:
    """Return what is known of a request, for its log line; handlers add to it."""
    return request.scope["facts"]


class RequestLog:
    """ASGI middleware: gives each request an id, logs and counts it, and answers 500 if the application fails.

    A request may bring its id in `X-Request-ID`; the response has it, too.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, is_logged: bool):
        self._app, self._metrics, self._is_logged = app, metrics, is_logged

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        facts = {"request_id": given if _ID.fullmatch(given) else uuid.uuid4().hex, "method": scope["method"]}
        facts["path"], scope["facts"] = scope["path"], facts
        start, status = time.perf_counter(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = str(facts["request_id"])
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            logger.exception("the request failed", extra={"facts": {"request_id": facts["request_id"]}})
            if status:
                raise error
            await JSONResponse({"error": FAILED}, 500)(scope, receive, noted)
        finally:
            self._count(scope, facts, status, time.perf_counter() - start)

    def _count(self, scope: Scope, facts: Mapping[str, Any], status: int, seconds: float) -> None:
        path = getattr(scope.get("route"), "path", "other")
        self._metrics.requests.labels(path, str(status)).inc()
        if path == "/recommend" and status == 200:
            self._metrics.seconds.observe(seconds)
        if self._is_logged and path not in _QUIET:
            logger.info("request", extra={"facts": {**facts, "status": status, "seconds": round(seconds, 4)}})
