"""ReDial in its official format: dialogues between a seeker and a recommender, with a form after each.

`*_data.jsonl` hold one dialogue a line; `@id` in a text names a movie. `catalog.jsonl` holds the movies'
metadata. Source: Li et al. 2018, "Towards Deep Conversational Recommendations".
"""

import re
from pathlib import Path

import pandas as pd

from convrec.data.catalog import Catalog, Item, LeftOut, build_catalog, read_json_lines, read_rows, title_and_year
from convrec.errors import InputError

METADATA = ("genre", "plot", "director", "star")
_MENTION = re.compile(r"@(\d+)")
_REQUIRED = ("conversationId", "movieMentions", "respondentQuestions", "initiatorWorkerId", "messages")
LIKED = 1  # the form's answers: 0 no, 1 yes, 2 did not say


def _read_dialogues(folder: Path) -> list[dict]:
    paths = sorted(folder.glob("*_data.jsonl"))
    if not paths:
        raise InputError(f"data.path = {str(folder)!r}: no *_data.jsonl there; name the folder of ReDial's files")
    dialogues = []
    for path in paths:
        for number, dialogue in enumerate(read_json_lines(path), start=1):
            for field in _REQUIRED:
                if field not in dialogue:
                    raise InputError(f"{path}: row {number}: field {field!r} is missing; not ReDial's format")
            if not isinstance(dialogue["messages"], list):
                raise InputError(f"{path}: row {number}: field 'messages' is not a list")
            dialogues.append({**dialogue, "_source": f"{path.name}:{number}"})
    return dialogues


def _as_dict(value: object) -> dict:
    """ReDial writes an empty mapping as an empty list."""
    return value if isinstance(value, dict) else {}


def _catalog(folder: Path, dialogues: list[dict], left_out: LeftOut) -> tuple[Catalog, dict[str, Item]]:
    """Return the catalog and its items by movie id; a year that a name lacks is taken from the mentions."""
    mentioned = {
        str(key): name for dialogue in dialogues for key, name in _as_dict(dialogue["movieMentions"]).items() if name
    }
    rows = []
    path = folder / "catalog.jsonl"
    for number, row in enumerate(read_rows(path), start=1):
        for field in ("movie_id", "name"):
            if not isinstance(row.get(field), (str, int)):
                raise InputError(f"{path}: row {number}: field {field!r} is missing")
        title, year = title_and_year(str(row["name"]))
        if not year:
            year = title_and_year(mentioned.get(str(row["movie_id"]), ""))[1]
        rows.append({**row, "title": title, "year": year})
    catalog = build_catalog(rows, METADATA, left_out)
    by_id = {}
    for row in rows:
        index = catalog.find(row["title"], int(row["year"]), tolerance=0) if row["year"] else None
        if index is not None:
            by_id[str(row["movie_id"])] = catalog.items[index]
    return catalog, by_id


def read_redial(folder: Path, left_out: LeftOut) -> tuple[Catalog, pd.DataFrame]:
    """Return the catalog and the canonical rows, with `conversation_id` beside them.

    Each recommender turn that suggests films the seeker liked gives a row: the conversation up to it, those films
    as ground truth, and the films mentioned before as seen. Dialogues carry no date. The catalog's rows and the
    suggestions that cannot be used are added to `left_out`.
    """
    if not folder.is_dir():
        raise InputError(f"data.path = {str(folder)!r}: no such folder; name the folder of ReDial's files")
    dialogues = _read_dialogues(folder)
    catalog, by_id = _catalog(folder, dialogues, left_out)
    rows = []
    for dialogue in dialogues:
        names = {str(key): str(name) for key, name in _as_dict(dialogue["movieMentions"]).items()}
        form = _as_dict(dialogue["respondentQuestions"])
        liked = {k for k, v in form.items() if v.get("suggested") == 1 and v.get("liked") == LIKED}
        messages: list[dict[str, str]] = []
        seen: list[str] = []
        for turn, message in enumerate(dialogue["messages"]):
            ids = list(dict.fromkeys(_MENTION.findall(message["text"])))
            is_seeker = message["senderWorkerId"] == dialogue["initiatorWorkerId"]
            if not is_seeker and any(m["role"] == "user" for m in messages):
                truths = []
                for movie in ids:
                    title = title_and_year(names.get(movie, ""))[0]
                    if movie not in liked or (movie in by_id and by_id[movie].title in seen) or title in seen:
                        continue
                    if movie not in by_id:
                        source = f"{dialogue['_source']} turn {turn}"
                        left_out.add("groundtruth", source, "not in the catalog", names.get(movie, movie))
                        continue
                    truths.append({"title": by_id[movie].title, "year": by_id[movie].year})
                if truths:
                    rows.append(
                        {
                            "conversation_id": str(dialogue["conversationId"]),
                            "prompt_id": f"{dialogue['conversationId']}-{turn}",
                            "date": "",
                            "messages": list(messages),
                            "groundtruth": truths,
                            "seen_titles": list(seen),
                        }
                    )
            text = _spell_mentions(message["text"], names, by_id)
            role = "user" if is_seeker else "assistant"
            if messages and messages[-1]["role"] == role:
                messages[-1] = {"role": role, "content": f"{messages[-1]['content']} {text}"}
            else:
                messages.append({"role": role, "content": text})
            for movie in ids:
                title = by_id[movie].title if movie in by_id else title_and_year(names.get(movie, ""))[0]
                if title and title not in seen:
                    seen.append(title)
    if not rows:
        raise InputError(f"data.path = {str(folder)!r}: no dialogue holds a suggestion that the seeker liked")
    return catalog, pd.DataFrame(rows)


def _spell_mentions(text: str, names: dict[str, str], by_id: dict[str, Item]) -> str:
    """Return the text with each `@id` replaced by the movie's words; an unknown id stays as it is."""

    def words(match: re.Match[str]) -> str:
        movie = match.group(1)
        return str(by_id[movie]) if movie in by_id else names.get(movie) or match.group()

    return _MENTION.sub(words, text)
