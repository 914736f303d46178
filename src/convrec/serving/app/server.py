"""The server of `convrec serve` and `convrec app`: one application, for `app` with a page."""

import logging
import signal
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from convrec.errors import InputError, Unavailable
from convrec.serving.app.admission import Busy
from convrec.serving.app.api import make_router
from convrec.serving.app.guard import HEAD_SECONDS, Guard, TimedHead
from convrec.serving.app.keys import Keys, RateLimit
from convrec.serving.app.page import make_page_router
from convrec.serving.app.request_log import RequestLog
from convrec.serving.app.service import ClientLeft, Late, Service
from convrec.serving.live import NoModel

logger = logging.getLogger(__name__)

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_MAX_CONNECTIONS = 2048
_CLIENT_LEFT = 499  # nginx's status for it; nobody receives it, but logs and metrics have it


def make_app(
    service: Service,
    *,
    has_page: bool,
    hosts: Collection[str] | None = None,
    keys: Keys | None = None,
    rate: RateLimit | None = None,
    is_logged: bool = False,
) -> FastAPI:
    """Return the application of a service. docs/serving.md describes its routes, docs/recommender.md those of the page.

    Errors are returned as `{"error": …}`. `Guard` describes its own errors and `hosts`; `is_logged` writes a log line
    for each request.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, hosts=hosts)
    app.add_middleware(RequestLog, metrics=service.metrics, is_logged=is_logged)
    app.include_router(make_router(service, keys, rate))
    if has_page:
        app.include_router(make_page_router(service))

    @app.exception_handler(InputError)
    async def bad_input(_: Request, error: InputError) -> JSONResponse:
        return _error(400, str(error))

    @app.exception_handler(RequestValidationError)
    async def bad_form(_: Request, error: RequestValidationError) -> JSONResponse:
        places = [(".".join(map(str, problem["loc"][1:])) or "body", problem["msg"]) for problem in error.errors()]
        return _error(422, "; ".join(f"{place}: {what}" for place, what in places))

    @app.exception_handler(HTTPException)
    async def bad_request(_: Request, error: HTTPException) -> JSONResponse:
        return _error(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(Busy)
    async def busy(_: Request, error: Busy) -> JSONResponse:
        return _error(429, str(error), {"Retry-After": str(error.retry_after)})

    @app.exception_handler(NoModel)
    async def no_model(_: Request, error: NoModel) -> JSONResponse:
        return _error(503, str(error))

    @app.exception_handler(Unavailable)
    async def unavailable(_: Request, error: Unavailable) -> JSONResponse:
        return _error(503, str(error))

    @app.exception_handler(Late)
    async def late(_: Request, error: Late) -> JSONResponse:
        return _error(504, str(error))

    @app.exception_handler(ClientLeft)
    async def left(_: Request, error: ClientLeft) -> Response:
        return Response(status_code=_CLIENT_LEFT)

    return app


def _error(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error response."""
    return JSONResponse({"error": reason}, status_code=status, headers=headers)


def make_server(app: FastAPI, stop_seconds: int = 5) -> uvicorn.Server:
    """Return the server of an application. It closes slow connections.

    When it is stopped, it accepts no connection any more, and requests in progress have `stop_seconds` to end.
    """
    config = uvicorn.Config(
        app,
        http=TimedHead,
        ws="none",
        log_config=None,
        log_level="warning",
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=HEAD_SECONDS,  # longer than clients keep idle connections: httpx 5 s
        timeout_graceful_shutdown=stop_seconds,
    )
    return uvicorn.Server(config)


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Reserve an address. Raises `InputError` if it cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            raise InputError(f"--host {host} --port {port}: cannot be used ({error}); give another address") from None
        yield listener


def hosts_of(listener: socket.socket, host: str) -> tuple[str, ...] | None:
    """Return the host names that requests may be for; None, for any, unless the address is of this machine only."""
    where = f"[{host}]" if listener.family == socket.AF_INET6 else host
    return (*_LOOPBACK, where.lower()) if ip_address(listener.getsockname()[0]).is_loopback else None


def run(app: FastAPI, listener: socket.socket, host: str, stop_seconds: int) -> None:
    """Serve until SIGTERM or Ctrl-C, which raises `KeyboardInterrupt`; both let requests in progress end."""
    where = f"[{host}]" if listener.family == socket.AF_INET6 else host
    logger.info("serving http://%s:%d, stop with Ctrl-C", where, listener.getsockname()[1])
    # uvicorn shuts down in order, then raises the signal again: the caller still has something to close.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        make_server(app, stop_seconds).run(sockets=[listener])
    finally:
        signal.signal(signal.SIGTERM, before)
