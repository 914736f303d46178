"""The routes of the service for programs: recommendations, feedback, health and metrics."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict

from convrec.feedback.records import new_answer_id
from convrec.serving.app.keys import Keys, RateLimit
from convrec.serving.app.request_log import facts_of
from convrec.serving.app.service import Question, Roles, Service
from convrec.serving.feedback import Event
from convrec.serving.routing import Routed
from convrec.serving.served import Answered, ServedModel
from convrec.serving.translation import NothingLeft, messages_from

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Feedback(BaseModel):
    """What a user did with an item of an answer; `list` is the name of the list, if the answer has several."""

    model_config = ConfigDict(extra="forbid", strict=True)

    answer_id: str
    item_id: str
    event: Event
    list: str = ""


def make_router(service: Service, keys: Keys | None, rate: RateLimit | None) -> APIRouter:
    """Return the routes. With keys, a request needs one (401), and each key has its rate limit (429)."""
    router = APIRouter()

    def check_key(request: Request) -> None:
        if keys is None:
            return
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        name = keys.name_of(key.strip()) if scheme.lower() == "bearer" else None
        if name is None:
            reason = "the API key is missing or wrong; send `Authorization: Bearer KEY`"
            raise HTTPException(401, reason, {"WWW-Authenticate": "Bearer"})
        facts_of(request)["key"] = name
        if rate is not None and (wait := rate.seconds_to_wait(name)):
            reason = f"the key {name} has sent too many requests; try again in {wait} s"
            raise HTTPException(429, reason, {"Retry-After": str(wait)})

    @router.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/ready")
    async def ready() -> dict[str, Any]:
        if not service.models.is_ready:
            raise HTTPException(503, "no model is loaded, or its engine has stopped")
        return {"versions": {role: model.version for role, model in service.models.roles.items()}}

    @router.get("/metrics")
    async def metrics() -> Response:
        versions = {role: model.version for role, model in service.models.roles.items()}
        return Response(service.metrics.page(versions), headers={"Content-Type": _TEXT})

    @router.post("/recommend", dependencies=[Depends(check_key)])
    async def recommend(question: Question, request: Request) -> dict[str, Any]:
        async def list_of(model: ServedModel) -> Answered:
            try:
                return await service.list_of(model, question, question.scores)
            except NothingLeft:
                if not question.or_fewer:
                    raise
                return Answered(messages_from(question.said), [], None, 0)

        async def ask(roles: Roles) -> Routed:
            return await service.route(roles, question.user_id, new_answer_id(datetime.now(UTC)), list_of)

        routed = await service.within_limits(question, request, ask)
        answered = routed.answered
        answer_id = service.record({"": answered.items}, answered.messages)
        facts_of(request).update(version=routed.version, answer_id=answer_id, items=len(answered.items))
        return {
            "answer_id": answer_id,
            "version": routed.version,
            **({} if routed.arm is None else {"arm": routed.arm}),
            "recommendations": _rows(answered),
            "request_id": facts_of(request)["request_id"],
        }

    @router.post("/feedback", dependencies=[Depends(check_key)])
    def record(event: Feedback) -> dict[str, Any]:
        add_event(service, event.answer_id, event.list, event.item_id, event.event)
        return {}

    return router


def add_event(service: Service, answer_id: str, name: str, item_id: str, event: Event) -> None:
    """Record an event on an item of the list of this name. Raises `HTTPException` if it is not saved."""
    if service.feedback is None:
        raise HTTPException(404, "feedback is not recorded; start the server with --feedback FILE")
    try:
        service.feedback.add_event(answer_id, name, item_id, event)
    except OSError as error:
        raise HTTPException(503, f"the feedback was not saved ({error.strerror}); try again") from None


def _rows(answered: Answered) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"rank": rank, "item_id": item.id, "title": item.title, "year": item.year}
        for rank, item in enumerate(answered.items, start=1)
    ]
    for row, score in zip(rows, answered.scores or [], strict=False):
        row["score"] = score
    return rows
