"""The server of `convrec serve` and `convrec app`: one application, for `app` with a page."""

import logging
import re
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.staticfiles import StaticFiles

from convrec.project.errors import InputError, NoSpace, Unavailable
from convrec.service.app.api import make_router
from convrec.service.app.edge import Edge
from convrec.service.app.keys import Keys
from convrec.service.app.page import STATIC, make_page_router
from convrec.service.app.service import Service

logger = logging.getLogger(__name__)

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_MAX_CONNECTIONS = 2048
_STOP_SECONDS = 30  # for requests in progress after a signal
_IDLE_SECONDS = 10  # until an idle connection is closed
_STATUSES = {InputError: 400, Unavailable: 503, NoSpace: 503}


def make_app(service: Service, *, has_page: bool, hosts: Sequence[str] = ("*",), keys: Keys | None = None) -> FastAPI:
    """Return the application of a service. docs/serving.md describes its routes, docs/recommender.md those of the page.

    Errors are returned as `{"error": …}`. Requests for another host than `hosts` get plain text and status 400.
    Without the page, each request has a log line.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    limit = service.limits.max_requests
    app.add_middleware(Edge, metrics=service.metrics, is_logged=not has_page, keys=keys, max_bodies=limit)
    app.include_router(make_router(service, keys))
    if has_page:
        app.include_router(make_page_router(service))
        app.mount("/", StaticFiles(directory=STATIC, html=True))
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _bad_form)
    for kind, status in _STATUSES.items():
        app.add_exception_handler(kind, partial(_known_error, status))
    return app


async def _http_error(_: Request, error: Any) -> JSONResponse:
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _bad_form(_: Request, error: Any) -> JSONResponse:
    places = [(".".join(map(str, problem["loc"][1:])) or "body", problem["msg"]) for problem in error.errors()]
    return JSONResponse({"error": "; ".join(f"{place}: {what}" for place, what in places)}, 422)


async def _known_error(status: int, _: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, status)


def make_server(app: FastAPI, stop_seconds: int = _STOP_SECONDS) -> uvicorn.Server:
    """Return the server of an application.

    When it is stopped, it accepts no connection any more, and requests in progress have `stop_seconds` to end.
    """
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        log_config=None,
        log_level="warning",
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=_IDLE_SECONDS,  # longer than clients keep idle connections: httpx 5 s
        timeout_graceful_shutdown=stop_seconds,
    )
    return uvicorn.Server(config)


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Reserve an address. Raises `InputError` if it cannot be used."""
    if not host:  # to a socket, this is every address
        raise InputError("--host '': give an address; 0.0.0.0 listens on all addresses of this machine")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            raise InputError(f"--host {host} --port {port}: cannot be used ({error}); give another address") from None
        yield listener


def hosts_of(listener: socket.socket, host: str, allowed: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the host names that requests may be for: those `allowed`, and this machine's own.

    Without `allowed`, it is any (`*`), unless the address is of this machine only. Raises `InputError` for what is no
    host name.
    """
    for name in allowed:
        if not re.fullmatch(r"(\*\.)?[\w.-]+|\[[0-9a-fA-F:.]+\]", name, re.ASCII):
            raise InputError(f"--allowed-host {name!r:.80}: give a host name without a port, such as recs.example.com")
    own = [_in_url(listener, host).lower()] if ip_address(listener.getsockname()[0]).is_loopback else []
    return (*_LOOPBACK, *own, *allowed) if own or allowed else ("*",)


def run(app: FastAPI, listener: socket.socket, host: str) -> None:
    """Serve until SIGTERM or Ctrl-C, which raises `KeyboardInterrupt`; both let requests in progress end."""
    listener.listen()  # who reads the next line in the log may connect at once
    logger.info("serving http://%s:%d, stop with Ctrl-C", _in_url(listener, host), listener.getsockname()[1])
    # uvicorn shuts down in order, then raises the signal again: the caller still has something to close.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        make_server(app).run(sockets=[listener])
    finally:
        signal.signal(signal.SIGTERM, before)


def _in_url(listener: socket.socket, host: str) -> str:
    return f"[{host}]" if listener.family == socket.AF_INET6 else host
