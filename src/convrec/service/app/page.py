"""The page of `convrec app`, and the routes that only the page needs: the lists of one or two models, with reasons."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from rapidfuzz import process
from rapidfuzz.distance import OSA

from convrec.data.catalog import Catalog
from convrec.data.titles import fold, title_and_year, without_accents
from convrec.data.wish_reader import LONGEST_READ, WishReader
from convrec.data.wishes import told
from convrec.project.errors import InputError
from convrec.service.app.service import OPTIONS, Question, Roles, Service
from convrec.service.feedback import new_answer_id
from convrec.service.reasons import example_requests, facts_of, what_is_read
from convrec.service.served import Answered, ServedModel
from convrec.service.translation import NothingLeft, Translator, messages_from

STATIC = Path(__file__).parent / "static"  # the page's files
_LEAST_SIMILARITY = 0.6  # of a title that is suggested for a misspelt one
_MAX_SUGGESTIONS, _MAX_SIMILAR = 8, 3
_MAX_DROPS = 3  # wishes and filters that are named where a list is short


class PageQuestion(Question):
    """A question of the page.

    `choices` has, for each message of the user, the text of each wish that was switched on or off after it. A later
    message that states the wish again ends the choice. `is_start` is for the list before the first message, for which
    nobody asked: it is not recorded.
    """

    choices: list[dict[str, bool]] = []
    is_start: bool = False


class OwnList(NamedTuple):
    """A model's list, the wishes that were switched on or off, and what to drop for a longer list."""

    answered: Answered
    chosen: Mapping[str, bool]
    drops: list[dict[str, Any]]


def make_page_router(service: Service) -> APIRouter:
    """Return the routes.

    `GET /api/models` returns the names, the numbers of items, the word for the items, example requests, and what is
    read.
    `GET /api/titles` returns whether a title is in a catalog, and suggestions. `POST /api/recommend` answers a
    `PageQuestion` with the lists of all models; `list` is a list's name for `POST /feedback`.
    """
    router = APIRouter()

    @router.get("/api/models")
    def names() -> dict[str, Any]:
        roles = service.models.current()
        first = next(iter(roles.values()))
        known = [
            {"name": _name(role, model), "items": len(model.translator.catalog), "noun": model.translator.noun}
            for role, model in roles.items()
        ]
        own = first.translator
        examples = example_requests(own.catalog, own.reasons, own.noun)
        recorder = service.recorder
        is_saved = "nothing" if recorder is None else "conversations" if recorder.with_conversations else "answers"
        reads = what_is_read(own.catalog, own.wishes)
        return {"models": known, "examples": examples, "reads": reads, "saved": is_saved}

    @router.get("/api/titles")
    def search(text: str) -> dict[str, Any]:
        translators = [model.translator for model in service.models.current().values()]
        known = any(translator.knows(text) for translator in translators)
        suggestions = _suggestions((translator.catalog for translator in translators), text)
        return {"is_known": known, "suggestions": suggestions}

    @router.post("/api/recommend")
    async def recommend(question: PageQuestion, request: Request) -> dict[str, Any]:
        async def ask(roles: Roles) -> list[tuple[str, ServedModel, OwnList]]:
            translators = [model.translator for model in roles.values()]
            await next(iter(roles.values())).read(partial(_check_titles, question, translators))
            asked = (_list_of(service, *pair, question) for pair in roles.items())
            lists = await asyncio.gather(*asked, return_exceptions=True)
            for problem in lists:  # the first model's, whichever came first
                if isinstance(problem, BaseException):
                    raise problem
            return [(*pair, listed) for pair, listed in zip(roles.items(), lists, strict=True)]  # type: ignore[misc]

        answer_id = new_answer_id(began := datetime.now(UTC))
        answers = await service.within_limits(request, ask)
        lists = [(role, model.version, own.answered) for role, model, own in answers]
        return {
            "answer_id": None if question.is_start else await service.record(began, answer_id, question.user_id, lists),
            "models": [
                {
                    "list": role,
                    "name": _name(role, model),
                    "recommendations": _explained(own.answered),
                    "wishes": [{**wish, "is_chosen": wish["text"] in own.chosen} for wish in told(own.answered.wishes)],
                    "drops": own.drops,
                }
                for role, model, own in answers
            ],
        }

    return router


def _name(role: str, model: ServedModel) -> str:
    words = {"champion": "Model in use", "challenger": "New model", "demo": "Demo model"}.get(role, role)
    return words if role == model.version else f"{words} (version {model.version})"


def _check_titles(question: Question, translators: list[Translator]) -> None:
    """Raise `InputError` for a title that is in no model's catalog; the models may have different catalogs."""
    for field, titles in (("deny", question.deny), ("allow", question.allow or [])):
        for title in titles:
            if not any(translator.knows(title) for translator in translators):
                translators[0].resolve(field, [title])


async def _list_of(service: Service, role: str, model: ServedModel, question: PageQuestion) -> OwnList:
    own = await model.read(partial(_own, question, model.translator))
    try:
        answered = await service.list_of(model, own)
    except InputError as error:
        raise InputError(f"{_name(role, model)}: {error}") from None
    drops = await _drops(model, own, answered) if len(answered.items) < own.n else []
    return OwnList(answered, own.wishes, drops)


def _own(question: PageQuestion, translator: Translator) -> PageQuestion:
    """Return the question for a list with reasons, with the titles that the model's catalog has and what was chosen."""
    deny, allow = (own and list(filter(translator.knows, own)) for own in (question.deny, question.allow))
    wishes = {**_chosen(question, translator.wishes), **question.wishes}
    return question.model_copy(update={"deny": deny, "allow": allow, "reasons": True, "wishes": wishes})


def _chosen(question: PageQuestion, reader: WishReader) -> dict[str, bool]:
    said = [message for message in question.messages or () if message.get("role") == "user"]
    found: dict[str, bool] = {}
    left = sum(len(str(message.get("content"))) for message in said)
    for message, choices in zip(said, question.choices, strict=False):
        if found and left <= LONGEST_READ:
            (own,) = messages_from([message])
            found = reader.still_chosen(found, own)
        found |= choices
        left -= len(str(message.get("content")))
    return found


async def _drops(model: ServedModel, question: PageQuestion, answered: Answered) -> list[dict[str, Any]]:
    """Return the wishes and filters without one of which the list is longer, and its length then; the longest first."""
    found: list[dict[str, Any]] = [
        {"kind": "wish", "text": wish.text, "items": min(question.n, wish.left)}
        for wish in reversed(answered.wishes)
        if wish.state == "kept" and wish.left is not None
    ]
    changes: list[tuple[str, dict[str, Any]]] = [("deny", {"deny": []})] if question.deny else []
    changes += [("allow", {"allow": None})] if question.allow is not None else []
    for kind, change in changes:
        changed = question.model_copy(update=change)
        try:
            asked = await model.prepare(changed.said, **changed.model_dump(include=OPTIONS - {"reasons"}))
        except NothingLeft:
            continue
        found.append({"kind": kind, "text": "", "items": asked.request.length})
    longer = [drop for drop in found if drop["items"] > len(answered.items)]
    return sorted(longer, key=lambda drop: -drop["items"])[:_MAX_DROPS]


def _explained(listed: Answered) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "title": item.title,
            "year": item.year,
            "item_id": item.id,
            "facts": facts_of(item),
            "reasons": own,
        }
        for rank, (item, own) in enumerate(zip(listed.items, listed.reasons or (), strict=True), start=1)
    ]


def _plain_lines(catalog: Catalog) -> dict[str, tuple[str, str]]:
    """Return each line `Title (Year)` and its title in small letters without accents."""
    return {str(item): (_plain(str(item)), _plain(item.title)) for item in catalog.items}


def _suggestions(catalogs: Iterable[Catalog], text: str) -> list[str]:
    """Return lines that begin with the text, then lines with a word that does, else lines with a similar title."""
    known = {line: plain for catalog in catalogs for line, plain in catalog.once(_plain_lines).items()}
    sought = _plain(text)
    found = [line for line, (plain, _) in known.items() if sought and f" {sought}" in f" {plain}"]
    if found:
        return sorted(found, key=lambda line: (not known[line][0].startswith(sought), len(line)))[:_MAX_SUGGESTIONS]
    titles = {line: title for line, (_, title) in known.items()}
    score, title = OSA.normalized_similarity, _plain(title_and_year(text)[0])
    near = process.extract(title, titles, scorer=score, score_cutoff=_LEAST_SIMILARITY, limit=_MAX_SIMILAR)
    return [line for _, _, line in near]


def _plain(text: str) -> str:
    return without_accents(fold(text))
