"""The routes of the service for programs: recommendations, feedback, health and metrics."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from convrec.data.wishes import told
from convrec.service.app.keys import Keys
from convrec.service.app.service import Question, Service
from convrec.service.feedback import new_answer_id
from convrec.service.feedback.records import EventName

_PROBE = ["GET", "HEAD"]
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Feedback(BaseModel):
    """What a user did with an item of an answer.

    `list` is the name of the list, if the answer has several. A repeated `event_id` changes nothing.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    answer_id: str
    item_id: str
    event: EventName
    list: str = ""
    event_id: str | None = Field(None, min_length=1)


def make_router(service: Service, keys: Keys | None) -> APIRouter:
    """Return the routes. While the keys cannot be read, the service is not ready."""
    router = APIRouter()

    @router.api_route("/health", methods=_PROBE)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @router.api_route("/ready", methods=_PROBE)
    def ready() -> dict[str, Any]:
        if keys is not None:
            keys.known()
        if not service.models.is_ready:
            raise HTTPException(503, "no model is loaded, or its engine has stopped")
        return {"versions": service.models.versions}

    @router.api_route("/metrics", methods=_PROBE)
    async def metrics() -> Response:
        return Response(service.metrics.page(service.models.versions), headers={"Content-Type": _TEXT})

    @router.post("/recommend")
    async def recommend(question: Question, request: Request) -> dict[str, Any]:
        answer_id = new_answer_id(began := datetime.now(UTC))
        routed = await service.within_limits(request, lambda roles: service.route(roles, question, answer_id))
        items, why = routed.answered.items, routed.answered.reasons
        reasons: list[dict[str, Any]] = [{}] * len(items) if why is None else [{"reasons": own} for own in why]
        lists = [("", routed.version, routed.answered)]
        recorded_id = await service.record(began, answer_id, question.user_id, lists, routed.experiment, routed.arm)
        facts: dict[str, Any] = request.scope["facts"]  # for the request's log line (see `Edge`)
        facts.update(version=routed.version, answer_id=recorded_id, items=len(items))
        return {
            "answer_id": recorded_id,
            "version": routed.version,
            **({} if routed.arm is None else {"arm": routed.arm}),
            "recommendations": [
                {"rank": rank, "item_id": item.id, "title": item.title, "year": item.year, **why}
                for rank, (item, why) in enumerate(zip(items, reasons, strict=True), start=1)
            ],
            "wishes": told(routed.answered.wishes),
            "request_id": facts["request_id"],
        }

    @router.post("/feedback")
    def record(event: Feedback) -> dict[str, Any]:
        if service.recorder is None:
            raise HTTPException(404, "feedback is not recorded; start the server without `--feedback none`")
        service.recorder.add_event(event.answer_id, event.list, event.item_id, event.event, event.event_id)
        service.metrics.events.labels(event.event).inc()
        return {}

    return router
