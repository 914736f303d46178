"""ReDial in its official format: dialogues between a seeker and a recommender, with a form after each.

`*_data.jsonl` hold one dialogue a line; `@id` in a text names a movie. `catalog.jsonl` holds the movies'
metadata. Source: Li et al. 2018, "Towards Deep Conversational Recommendations".
"""

import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from convrec.data.catalog import Catalog, Item, build_catalog
from convrec.data.catalog_files import read_raw_rows
from convrec.data.json_lines import json_lines
from convrec.data.quarantine import Quarantine
from convrec.data.rows import usable_rows
from convrec.data.schemas import spooled
from convrec.data.sources.source import Source
from convrec.data.titles import title_and_year, usable_id, usable_title
from convrec.project.errors import InputError

METADATA = ("genre", "plot", "director", "star")
_MENTION = re.compile(r"@(\d+)")
DISLIKED, LIKED = 0, 1  # the form's answers: 0 no, 1 yes, 2 did not say
_OR_EMPTY = BeforeValidator(lambda value: value or {})  # ReDial writes an empty mapping as an empty list


class _OwnForm(BaseModel):
    liked: Literal[0, 1, 2]


class _Form(_OwnForm):
    suggested: Literal[0, 1, 2]


class _Message(BaseModel):
    sender: int | str = Field(alias="senderWorkerId")
    text: str


class _Dialogue(BaseModel):
    """One dialogue: movies and forms by movie id, the recommender's `answers` and the seeker's `own_answers`."""

    id: Annotated[str, BeforeValidator(partial(usable_id, field="conversationId"))] = Field(
        alias="conversationId", min_length=1
    )
    seeker: int | str = Field(alias="initiatorWorkerId")
    messages: list[_Message]
    movies: Annotated[dict[str, str | None], _OR_EMPTY] = Field(alias="movieMentions")
    answers: Annotated[dict[str, _Form], _OR_EMPTY] = Field(alias="respondentQuestions")
    own_answers: Annotated[dict[str, _OwnForm], _OR_EMPTY] = Field({}, alias="initiatorQuestions")


def _read_dialogues(folder: Path, quarantine: Quarantine) -> dict[str, _Dialogue]:
    """Return the usable dialogues by file and line."""
    paths = sorted(folder.glob("*_data.jsonl"))
    if not paths:
        raise InputError(f"data.path = {str(folder)!r}: no *_data.jsonl there; name the folder of ReDial's files")
    dialogues = {}
    for path in paths:
        for number, raw in json_lines(path):
            try:
                dialogues[f"{path.name}:{number}"] = _Dialogue.model_validate(raw)
            except ValidationError as error:
                problem = error.errors()[0]
                reason = f"{problem['loc'][0]}: {problem['msg']}" if problem["loc"] else problem["msg"]
                quarantine.count("conversations")
                quarantine.add("conversations", f"{path.name}:{number}", reason, raw)
    return dialogues


def _catalog(folder: Path, dialogues: Iterable[_Dialogue], quarantine: Quarantine) -> tuple[Catalog, dict[str, Item]]:
    """Return the catalog and its items by movie id; a year that a name lacks is taken from the mentions, if there."""
    mentioned = {key: name for dialogue in dialogues for key, name in dialogue.movies.items() if name}
    rows = []
    path = folder / "catalog.jsonl"
    for number, row in enumerate(read_raw_rows(path), start=1):
        for field in ("movie_id", "name"):
            if not isinstance(row.get(field), (str, int)):
                raise InputError(f"{path}: row {number}: field {field!r} is missing")
        title, year = title_and_year(str(row["name"]))
        if not year:
            year = title_and_year(mentioned.get(str(row["movie_id"]), ""))[1]
        rows.append({**row, "title": title, "year": year})
    catalog, places = build_catalog(rows, METADATA, quarantine, keys=[str(row["movie_id"]) for row in rows])
    placed = zip(rows, places, strict=True)
    return catalog, {str(row["movie_id"]): catalog.items[index] for row, index in placed if index is not None}


def _mentioned(dialogue: _Dialogue, by_id: dict[str, Item]) -> Mapping[str, Item]:
    """Return the movies of a dialogue by id: the catalog's item, else what the dialogue calls it."""
    own = {}
    for key, name in dialogue.movies.items():
        with suppress(ValueError):  # an id without a usable name stays a number
            own[key] = Item(*usable_title(name, None))
    return ChainMap(by_id, own)


def _raw_rows(
    source: str, dialogue: _Dialogue, by_id: dict[str, Item], recommended: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of one dialogue: a row for each message that suggests films that the seeker liked.

    The seeker disliked what their own form says, or the other one where that has no answer. With `recommended`, a row
    for each message of the recommender that names films anew, and nothing of the forms, which come after the dialogue.
    """
    items, forms = _mentioned(dialogue, by_id), {**dialogue.answers, **dialogue.own_answers}
    liked = {key for key, form in dialogue.answers.items() if form.suggested == 1 and form.liked == LIKED}
    said: list[tuple[str, list[str]]] = []  # role, and the texts that it sent in a row
    seen: dict[str, dict[str, Any]] = {}  # items by title, in order
    hated: dict[str, dict[str, Any]] = {}  # those of them that the seeker disliked
    for turn, message in enumerate(dialogue.messages):
        if not message.text.strip():
            continue
        named: dict[str, dict[str, Any]] = {
            movie: {"title": items[movie].title, "year": items[movie].year} if movie in items else {"id": movie}
            for movie in _MENTION.findall(message.text)
        }
        role = "user" if message.sender == dialogue.seeker else "assistant"
        truths = [
            item
            for movie, item in named.items()
            if (movie in items if recommended else movie in liked) and item.get("title") not in seen
        ]
        if role == "assistant" and truths:
            yield (
                f"{source} turn {turn}",
                {
                    "conversation_id": dialogue.id,
                    "prompt_id": f"{dialogue.id}-{turn}",
                    "user_id": dialogue.seeker,
                    "messages": [{"role": speaker, "content": " ".join(texts)} for speaker, texts in said],
                    "groundtruth": truths,
                    "seen_titles": list(seen.values()),
                    "disliked_titles": list(hated.values()),
                },
            )
        text = _MENTION.sub(lambda match: str(items.get(match.group(1), match.group())), message.text)
        if not said or said[-1][0] != role:
            said.append((role, []))
        said[-1][1].append(text)
        for movie, item in named.items():
            if movie in items:
                seen.setdefault(item["title"], item)
                if not recommended and movie in forms and forms[movie].liked == DISLIKED:
                    hated.setdefault(item["title"], item)


def _own_splits(dialogues: Sequence[tuple[str, int | str]], held_out_share: float) -> pd.Series:
    """Return the split of each dialogue, given as file and id, by id: that of its file.

    Where a file is absent, its split is the last dialogues of the training file, those of test after those of
    validation, each with this share.
    """
    files = {"train_data.jsonl": "train", "valid_data.jsonl": "validation", "test_data.jsonl": "test"}
    splits = pd.Series([files.get(file) for file, _ in dialogues], index=[str(own) for _, own in dialogues])
    train = np.flatnonzero(splits == "train")
    if not len(train):
        raise InputError("data.redial.own_splits = true: no train_data.jsonl with dialogues in data.path; give false")
    end = len(train)
    for name in ("test", "validation"):
        if not (splits == name).any():
            start = end - round(held_out_share * len(train))
            splits.iloc[train[max(start, 0) : end]] = name
            end = start
    return splits


def read_redial(
    folder: Path,
    quarantine: Quarantine,
    *,
    ground_truth: str = "liked",
    own_splits: bool = False,
    held_out_share: float = 0.1,
) -> Source:
    """Return the catalog and the canonical rows.

    Each message of the recommender that suggests films the seeker liked gives a row: the conversation up to it, those
    films as ground truth, the films mentioned before as seen, and those of them that the forms call disliked. With a
    `ground_truth` of "recommended", all films that the message names anew are ground truth, and no form is read.
    Dialogues carry no date. With `own_splits`, the files are the splits (see `_own_splits`). What cannot be used is
    added to `quarantine`. Raises `InputError` on missing or unreadable files, and if there is no row.
    """
    dialogues = _read_dialogues(folder, quarantine)
    catalog, by_id = _catalog(folder, dialogues.values(), quarantine)
    recommended = ground_truth == "recommended"
    raw_rows = (row for source, own in dialogues.items() for row in _raw_rows(source, own, by_id, recommended))
    rows = usable_rows(raw_rows, catalog, quarantine, needs_user=not recommended)
    if own_splits:
        files = [(source.rpartition(":")[0], dialogue.id) for source, dialogue in dialogues.items()]
        splits = _own_splits(files, held_out_share)[::-1].to_dict()  # of an id that stands twice, the first counts
        rows = (row | {"split": splits[row["conversation_id"]]} for row in rows)
    found = spooled(rows)
    if not len(found):
        kind = "film that the recommender names" if recommended else "suggestion that the seeker liked"
        raise InputError(f"data.path = {str(folder)!r}: no dialogue holds a {kind}")
    return Source(catalog, found)
