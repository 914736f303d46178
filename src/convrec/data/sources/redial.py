"""ReDial in its official format: dialogues between a seeker and a recommender, with a form after each.

`*_data.jsonl` hold one dialogue a line; `@id` in a text names a movie. `catalog.jsonl` holds the movies'
metadata. Source: Li et al. 2018, "Towards Deep Conversational Recommendations".
"""

import re
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from convrec.data.catalog import Catalog, Item, build_catalog
from convrec.data.catalog_files import read_json_lines, read_raw_rows
from convrec.data.quarantine import Quarantine
from convrec.data.rows import check_conversation_length
from convrec.data.sources.source import Source
from convrec.data.titles import title_and_year, usable_id, usable_title
from convrec.project.errors import InputError
from convrec.project.text import is_clean

METADATA = ("genre", "plot", "director", "star")
_MENTION = re.compile(r"@(\d+)")
_REQUIRED = ("conversationId", "movieMentions", "respondentQuestions", "initiatorWorkerId", "messages")
DISLIKED, LIKED = 0, 1  # the form's answers: 0 no, 1 yes, 2 did not say


def _read_dialogues(folder: Path, quarantine: Quarantine) -> dict[str, dict]:
    """Return the usable dialogues by file and row."""
    paths = sorted(folder.glob("*_data.jsonl"))
    if not paths:
        raise InputError(f"data.path = {str(folder)!r}: no *_data.jsonl there; name the folder of ReDial's files")
    dialogues = {}
    for path in paths:
        rows = read_json_lines(path)
        quarantine.count("conversations", len(rows))
        for number, dialogue in enumerate(rows, start=1):
            for field in _REQUIRED:
                if field not in dialogue:
                    raise InputError(f"{path}: row {number}: field {field!r} is missing; not ReDial's format")
            try:
                _check(dialogue)
            except ValueError as problem:
                quarantine.add("conversations", f"{path.name}:{number}", str(problem), dialogue)
            else:
                dialogues[f"{path.name}:{number}"] = dialogue
    return dialogues


def _check(dialogue: dict) -> None:
    """Raise `ValueError` saying which field of a dialogue has another form than the official files give it."""
    if not usable_id(dialogue["conversationId"], "conversation_id"):
        raise ValueError("no conversationId")
    usable_id(dialogue["initiatorWorkerId"], "initiatorWorkerId")
    if not _are_messages(dialogue["messages"]):
        raise ValueError("messages are no list of {senderWorkerId, text}")
    check_conversation_length([message["text"] for message in dialogue["messages"]])
    for field in ("movieMentions", "respondentQuestions"):
        if not isinstance(dialogue[field], dict) and dialogue[field] != []:
            raise ValueError(f"{field} is no mapping")
    for form in _as_dict(dialogue["respondentQuestions"]).values():
        if not isinstance(form, dict) or any(form.get(name) not in (0, 1, 2) for name in ("suggested", "liked")):
            raise ValueError("an answer of respondentQuestions lacks suggested or liked as 0, 1 or 2")


def _are_messages(messages: object) -> bool:
    return isinstance(messages, list) and all(
        isinstance(message, dict)
        and "senderWorkerId" in message
        and isinstance(message.get("text"), str)
        and is_clean(message["text"])
        for message in messages
    )


def _as_dict(value: object) -> dict:
    """ReDial writes an empty mapping as an empty list."""
    return value if isinstance(value, dict) else {}


def _catalog(folder: Path, dialogues: list[dict], quarantine: Quarantine) -> tuple[Catalog, dict[str, Item]]:
    """Return the catalog and its items by movie id; a year that a name lacks is taken from the mentions, if there."""
    mentioned = {
        str(key): name for dialogue in dialogues for key, name in _as_dict(dialogue["movieMentions"]).items() if name
    }
    rows = []
    path = folder / "catalog.jsonl"
    for number, row in enumerate(read_raw_rows(path), start=1):
        for field in ("movie_id", "name"):
            if not isinstance(row.get(field), (str, int)):
                raise InputError(f"{path}: row {number}: field {field!r} is missing")
        title, year = title_and_year(str(row["name"]))
        if not year:
            year = title_and_year(str(mentioned.get(str(row["movie_id"]), "")))[1]
        rows.append({**row, "title": title, "year": year})
    catalog, places = build_catalog(rows, METADATA, quarantine)
    placed = zip(rows, places, strict=True)
    return catalog, {str(row["movie_id"]): catalog.items[index] for row, index in placed if index is not None}


def _mentioned(dialogue: dict, by_id: dict[str, Item]) -> Mapping[str, Item]:
    """Return the movies of a dialogue by id: the catalog's item, else what the dialogue calls it."""
    own = {}
    for key, name in _as_dict(dialogue["movieMentions"]).items():
        try:
            own[str(key)] = Item(*usable_title(name, None))
        except ValueError:  # an id without a usable name stays a number
            continue
    return ChainMap(by_id, own)


def _liked(dialogue: dict) -> set[str]:
    forms = _as_dict(dialogue["respondentQuestions"])
    return {key for key, form in forms.items() if form["suggested"] == 1 and form["liked"] == LIKED}


def _disliked(dialogue: dict) -> set[str]:
    """Return the movies that the seeker disliked by the seeker's own form, or by the other where that has no answer."""
    forms = _as_dict(dialogue["respondentQuestions"]) | _as_dict(dialogue.get("initiatorQuestions"))
    return {key for key, form in forms.items() if isinstance(form, dict) and form.get("liked") == DISLIKED}


def _rows(source: str, dialogue: dict, by_id: dict[str, Item], quarantine: Quarantine) -> list[dict[str, Any]]:
    """Return the rows of one dialogue: a row for each turn with suggestions that the seeker liked."""
    items, liked, disliked = _mentioned(dialogue, by_id), _liked(dialogue), _disliked(dialogue)
    rows: list[dict[str, Any]] = []
    said: list[tuple[str, list[str]]] = []  # role, and the texts that it sent in a row
    seen: dict[str, None] = {}  # titles, in order
    hated: dict[str, None] = {}  # those of them that the seeker disliked
    conversation = usable_id(dialogue["conversationId"], "conversation_id")
    for turn, message in enumerate(dialogue["messages"]):
        if not message["text"].strip():
            continue
        ids = list(dict.fromkeys(_MENTION.findall(message["text"])))
        is_seeker = message["senderWorkerId"] == dialogue["initiatorWorkerId"]
        if not is_seeker and any(role == "user" for role, _ in said[:2]):
            wanted = [movie for movie in ids if movie in liked]
            quarantine.count("groundtruth", len(wanted))
            for movie in wanted:
                if movie not in items:
                    quarantine.add("groundtruth", f"{source} turn {turn}", "no name", movie)
            named = [items[movie] for movie in wanted if movie in items]
            truths = [{"title": item.title, "year": item.year} for item in named if item.title not in seen]
            if truths:
                rows.append(
                    {
                        "conversation_id": conversation,
                        "prompt_id": f"{conversation}-{turn}",
                        "user_id": usable_id(dialogue["initiatorWorkerId"], "initiatorWorkerId"),
                        "date": "",
                        "messages": [{"role": role, "content": " ".join(texts)} for role, texts in said],
                        "groundtruth": truths,
                        "seen_titles": list(seen),
                        "disliked_titles": list(hated),
                    }
                )
        text = _MENTION.sub(lambda match: str(items.get(match.group(1), match.group())), message["text"])
        role = "user" if is_seeker else "assistant"
        if not said or said[-1][0] != role:
            said.append((role, []))
        said[-1][1].append(text)
        seen |= dict.fromkeys(items[movie].title for movie in ids if movie in items)
        hated |= dict.fromkeys(items[movie].title for movie in ids if movie in items and movie in disliked)
    return rows


def read_redial(folder: Path, quarantine: Quarantine) -> Source:
    """Return the catalog and the canonical rows.

    Each recommender turn that suggests films the seeker liked gives a row: the conversation up to it, those films
    as ground truth, the films mentioned before as seen, and those of them that the forms call disliked. Dialogues
    carry no date. What cannot be used is added to `quarantine`. Raises `InputError` on missing or unreadable files,
    and if there is no row.
    """
    if not folder.is_dir():
        raise InputError(f"data.path = {str(folder)!r}: no such folder; name the folder of ReDial's files")
    dialogues = _read_dialogues(folder, quarantine)
    catalog, by_id = _catalog(folder, list(dialogues.values()), quarantine)
    rows = [row for source, dialogue in dialogues.items() for row in _rows(source, dialogue, by_id, quarantine)]
    if not rows:
        raise InputError(f"data.path = {str(folder)!r}: no dialogue holds a suggestion that the seeker liked")
    return Source(catalog, pd.DataFrame(rows))
