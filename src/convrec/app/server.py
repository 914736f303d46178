"""The page of `convrec app` and the interface behind it: one conversation, the lists of one model or two."""

import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import asdict
from importlib.resources import files
from ipaddress import ip_address
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from convrec.errors import InputError
from convrec.recommender import LIST_LENGTH, Recommender, open_recommender

logger = logging.getLogger(__name__)

_PAGE = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_MAX_BODY = 1_000_000  # bytes of a question
_POLICY = "default-src 'self'; img-src data:; frame-ancestors 'none'; form-action 'self'; base-uri 'none'"


class Question(BaseModel):
    """What is asked: a conversation as text or as messages, and the list that is wanted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    conversation: str | None = None
    messages: list[dict[str, Any]] | None = None
    n: int = LIST_LENGTH
    deny: list[str] = []
    allow: list[str] | None = None


def make_app(models: Mapping[str, Recommender], hosts: Collection[str] | None = None) -> FastAPI:
    """Return the application for these models, which answer in their order under their names.

    `GET /api/models` tells the names, the number of items and what they are; `POST /api/recommend` answers a
    `Question`. What `Recommender.recommend` does not take is answered with status 400 and `{"error": …}`, a question of
    another form with 422 and the same. With `hosts`, requests that name another host get 421: a foreign page, whose
    name was made to mean this machine, sends such.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(InputError)
    def bad_input(_: Request, error: InputError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, status_code=400)

    @app.exception_handler(RequestValidationError)
    def bad_form(_: Request, error: RequestValidationError) -> JSONResponse:
        places = [(".".join(map(str, problem["loc"][1:])) or "body", problem["msg"]) for problem in error.errors()]
        return JSONResponse({"error": "; ".join(f"{place}: {what}" for place, what in places)}, status_code=422)

    @app.middleware("http")
    async def restrict(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        response = _refusal(request, hosts) or await call(request)
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    @app.get("/api/models")
    def names() -> dict[str, Any]:
        known = [{"name": name, "items": len(model.catalog), "noun": model.noun} for name, model in models.items()]
        return {"models": known}

    @app.post("/api/recommend")
    def recommend(question: Question) -> dict[str, Any]:
        if (question.conversation is None) == (question.messages is None):
            raise InputError("conversation, messages: give one of the two")
        said: Any = question.messages if question.conversation is None else question.conversation
        _check_titles(models, question)
        answers = [
            {"name": name, "recommendations": _answer(name, model, said, question)} for name, model in models.items()
        ]
        return {"models": answers}

    for path in _PAGE:
        app.get(path)(_file(path))
    return app


def _refusal(request: Request, hosts: Collection[str] | None) -> Response | None:
    """Return the answer to a request of a foreign host's name, or with a body beyond the limit or of unknown size."""
    host = request.headers.get("host", "").lower()
    host = host if host.endswith("]") else host.rpartition(":")[0] or host
    if hosts is not None and host not in hosts:
        return JSONResponse({"error": f"Host {host!r} is not served; ask for {', '.join(hosts)}"}, status_code=421)
    if request.method == "POST" and "content-length" not in request.headers:
        return JSONResponse({"error": "Content-Length: missing; send it"}, status_code=411)
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > _MAX_BODY:
        return JSONResponse({"error": f"a question has at most {_MAX_BODY:,} bytes; shorten it"}, status_code=413)
    return None


def _check_titles(models: Mapping[str, Recommender], question: Question) -> None:
    """Raise `InputError` for a title that no model's catalog has; each has its own."""
    for field, titles in (("deny", question.deny), ("allow", question.allow or [])):
        for title in titles:
            if not any(model.knows(title) for model in models.values()):
                next(iter(models.values())).check_titles(field, [title])


def _answer(name: str, model: Recommender, said: Any, question: Question) -> list[dict[str, Any]]:
    deny = list(filter(model.knows, question.deny))
    allow = None if question.allow is None else list(filter(model.knows, question.allow))
    try:
        (answer,) = model.recommend([said], question.n, deny, allow)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return [asdict(recommendation) for recommendation in answer]


def _file(path: str) -> Callable[[], Response]:
    name, kind = _PAGE[path]
    content = files("convrec.app").joinpath(name).read_bytes()
    return lambda: Response(content, media_type=f"{kind}; charset=utf-8")


def load_models(model: str | None, challenger: str | None) -> dict[str, Recommender]:
    """Return the models to show, by name: by default the champion and, where there is one, its challenger.

    With `model` named, there is a second one only if `challenger` is; `none` leaves it out. Raises `InputError` where
    a model is not found.
    """
    if model is None:
        from convrec.registry import compared_versions  # noqa: PLC0415  (imports mlflow)

        names = compared_versions()
        if challenger is not None:
            names = dict(list(names.items())[:1])
    else:
        names = {model: model}
    if challenger not in (None, "none"):
        if challenger in names.values():
            raise InputError(f"--challenger {challenger}: this is the first model; name another, or `none`")
        names[str(challenger)] = str(challenger)
    logger.info("loading %s", " and ".join(names))
    return {name: open_recommender(uri) for name, uri in names.items()}


def serve(model: str | None, challenger: str | None, host: str, port: int) -> None:
    """Serve the page until it is interrupted. Raises `InputError` where the address cannot be taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            raise InputError(f"--host {host} --port {port}: cannot be used ({error}); give another") from None
        where = f"[{host}]" if family == socket.AF_INET6 else host
        is_local = ip_address(listener.getsockname()[0]).is_loopback
        app = make_app(load_models(model, challenger), (*_LOOPBACK, where.lower()) if is_local else None)
        logger.info("serving http://%s:%d, end with Ctrl-C", where, listener.getsockname()[1])
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])  # ends in order, then raises
