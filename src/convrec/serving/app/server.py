"""The server of `convrec app`: its page and its HTTP API, for the lists of one or two models."""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
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
from convrec.serving.app.answers import Answers, Question
from convrec.serving.app.guard import Guard, TimedHead
from convrec.serving.app.titles import TitleSearch
from convrec.serving.feedback import Event, FeedbackLog
from convrec.serving.recommender import Recommender

logger = logging.getLogger(__name__)

_PAGE = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript") for name in ("elements", "lists", "page", "titles")},
}
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_MAX_CONNECTIONS = 512
_STOP_SECONDS = 5  # for requests in progress when the server is interrupted


class Feedback(BaseModel):
    """What a user did with an item of an answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    answer_id: str
    model: str
    item_id: str
    event: Event


def make_app(
    models: Mapping[str, Recommender], hosts: Collection[str] | None = None, feedback: FeedbackLog | None = None
) -> FastAPI:
    """Return the application for these models by name; responses list the models in this order.

    `GET /api/models` returns the names, the numbers of items, the word for the items, and example requests.
    `GET /api/titles` returns whether a title is in a catalog, and suggestions. `POST /api/recommend` answers a
    `Question`, `POST /api/feedback` records a `Feedback`; without a log for it, it returns 404.

    Questions are answered one at a time. If a client disconnects, its question is dropped: a waiting
    question is not started, a running one stops at its next token. Errors are returned as `{"error": …}`: with 400 for
    input that `Recommender.recommend` rejects, with 422 for a malformed question. `Guard` describes its own errors and
    `hosts`.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, hosts=hosts)
    questions = ThreadPoolExecutor(1, "questions")  # a separate thread, so that other requests are answered meanwhile
    answers = Answers(models, feedback)
    titles = TitleSearch(model.catalog for model in models.values())
    examples = answers.examples()

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
        is_saved = "nothing" if feedback is None else "conversations" if feedback.with_conversations else "answers"
        return {"models": known, "examples": examples, "saved": is_saved}

    @app.get("/api/titles")
    def search(text: str) -> dict[str, Any]:
        known = any(model.knows(text) for model in models.values())
        return {"is_known": known, "suggestions": titles.suggestions(text)}

    @app.post("/api/feedback")
    def record(event: Feedback) -> dict[str, Any]:
        if feedback is None:
            raise HTTPException(404, "feedback is not recorded; start `convrec app` with --feedback FILE")
        try:
            feedback.add_event(event.answer_id, event.model, event.item_id, event.event)
        except OSError as error:
            raise HTTPException(503, f"the feedback was not saved ({error.strerror}); try again") from None
        return {}

    @app.post("/api/recommend", response_model=None)
    async def recommend(question: Question, request: Request) -> dict[str, Any] | Response:
        abandoned = threading.Event()
        answer = asyncio.get_running_loop().run_in_executor(questions, answers.ask, question, abandoned.is_set)
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


def serve(
    load: Callable[[], Mapping[str, Recommender]], host: str, port: int, feedback: FeedbackLog | None = None
) -> None:
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
        app = make_app(load(), (*_LOOPBACK, where.lower()) if is_local else None, feedback)
        logger.info("serving http://%s:%d, stop with Ctrl-C", where, listener.getsockname()[1])
        make_server(app).run(sockets=[listener])  # shuts down cleanly, then raises
