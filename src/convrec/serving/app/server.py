"""The server of `convrec app`: its page and its HTTP API, for the lists of one or two models."""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.resources import files
from ipaddress import ip_address
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from convrec.errors import InputError
from convrec.serving.app.guard import Guard, TimedHead
from convrec.serving.recommender import LIST_LENGTH, Recommender

logger = logging.getLogger(__name__)

_PAGE = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_MAX_CONNECTIONS = 512
_STOP_SECONDS = 5  # for requests in progress when the server is interrupted


class Question(BaseModel):
    """A request: a conversation as text or as messages, and options of the list."""

    model_config = ConfigDict(extra="forbid", strict=True)

    conversation: str | None = None
    messages: list[dict[str, Any]] | None = None
    n: int = LIST_LENGTH
    deny: list[str] = []
    allow: list[str] | None = None


def make_app(models: Mapping[str, Recommender], hosts: Collection[str] | None = None) -> FastAPI:
    """Return the application for these models by name; responses list the models in this order.

    `GET /api/models` returns the names, the numbers of items and the word for the items. `POST /api/recommend` answers
    a `Question`. Questions are answered one at a time. If a client disconnects, its question is dropped: a waiting
    question is not started, a running one stops at its next token. Errors are returned as `{"error": …}`: with 400 for
    input that `Recommender.recommend` rejects, with 422 for a malformed question. `Guard` describes its own errors and
    `hosts`.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, hosts=hosts)
    questions = ThreadPoolExecutor(1, "questions")  # a separate thread, so that other requests are answered meanwhile

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

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return _error(500, "the server failed; see its log")

    @app.get("/api/models")
    async def names() -> dict[str, Any]:
        known = [{"name": name, "items": len(model.catalog), "noun": model.noun} for name, model in models.items()]
        return {"models": known}

    @app.post("/api/recommend", response_model=None)
    async def recommend(question: Question, request: Request) -> dict[str, Any] | Response:
        abandoned = threading.Event()
        answer = asyncio.get_running_loop().run_in_executor(questions, _ask, models, question, abandoned.is_set)
        departure = asyncio.create_task(_departure(request))
        both: set[asyncio.Future[Any]] = {answer, departure}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else Response()  # the client has left
        finally:
            abandoned.set()
            answer.cancel()
            departure.cancel()

    for path in _PAGE:
        app.get(path)(_file(path))
    return app


def _error(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error response."""
    return JSONResponse({"error": reason}, status_code=status, headers=headers)


async def _departure(request: Request) -> None:
    """Wait until the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _ask(models: Mapping[str, Recommender], question: Question, is_abandoned: Callable[[], bool]) -> dict[str, Any]:
    if (question.conversation is None) == (question.messages is None):
        raise InputError("conversation, messages: give exactly one of the two")
    said: Any = question.messages if question.conversation is None else question.conversation
    _check_titles(models, question)
    return {
        "models": [
            {"name": name, "recommendations": _answer(name, model, said, question, is_abandoned)}
            for name, model in models.items()
        ]
    }


def _check_titles(models: Mapping[str, Recommender], question: Question) -> None:
    """Raise `InputError` for a title that is in no model's catalog; the models may have different catalogs."""
    for field, titles in (("deny", question.deny), ("allow", question.allow or [])):
        for title in titles:
            if not any(model.knows(title) for model in models.values()):
                next(iter(models.values())).check_titles(field, [title])


def _answer(
    name: str, model: Recommender, said: Any, question: Question, is_abandoned: Callable[[], bool]
) -> list[dict[str, Any]]:
    deny = list(filter(model.knows, question.deny))
    allow = None if question.allow is None else list(filter(model.knows, question.allow))
    try:
        (answer,) = model.recommend([said], question.n, deny, allow, is_abandoned)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return [asdict(recommendation) for recommendation in answer]


def _file(path: str) -> Callable[[], Coroutine[Any, Any, Response]]:
    name, kind = _PAGE[path]
    content = files("convrec.serving.app").joinpath(name).read_bytes()

    async def answer() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8")

    return answer


def make_server(app: FastAPI) -> uvicorn.Server:
    """Return the server of an application. It closes slow connections, and stops within seconds when interrupted."""
    config = uvicorn.Config(
        app,
        http=TimedHead,
        ws="none",
        log_level="warning",
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    return uvicorn.Server(config)


def serve(load: Callable[[], Mapping[str, Recommender]], host: str, port: int) -> None:
    """Serve the page for the models that `load` returns until interrupted.

    Raises `InputError` if the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            raise InputError(f"--host {host} --port {port}: cannot be used ({error}); give another address") from None
        where = f"[{host}]" if family == socket.AF_INET6 else host
        is_local = ip_address(listener.getsockname()[0]).is_loopback
        app = make_app(load(), (*_LOOPBACK, where.lower()) if is_local else None)
        logger.info("serving http://%s:%d, stop with Ctrl-C", where, listener.getsockname()[1])
        make_server(app).run(sockets=[listener])  # shuts down cleanly, then raises
