"""A chat model as the teacher: its prompts, and the texts of items that the catalog says nothing about."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from convrec.data.catalog import Catalog, Item
from convrec.data.conversations import transcript
from convrec.data.mentions import Mentions
from convrec.data.parsing import Entry
from convrec.demonstrations.calls import CallStore
from convrec.demonstrations.chat import ChatClient
from convrec.demonstrations.reflect import parse_ratings
from convrec.demonstrations.teachers import Row, Setting, Teacher
from convrec.project.errors import InputError
from convrec.project.paths import regular

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 4096  # conversations whose candidates are rated together; their prompts are in memory
CANDIDATES_PER_CALL = 50
PASSAGES, PASSAGE_LENGTH = 3, 300  # of what people wrote about an item: how many, and their characters
_MAX_LENGTH = 1000
_UNKNOWN = re.compile(r"\bunknown\b", re.IGNORECASE)
_LABEL = re.compile(r"^\W*(genres|keywords|people|plot)\W*:\W*", re.IGNORECASE)

# Required fields of each prompt; the words of the domain are allowed in all of them.
_NEEDED = {
    "recommend": {"list_length", "conversation"},
    "judge": {"conversation", "candidates"},
    "describe": {"title"},
    "describe_unknown": {"title", "passages"},
}
PROMPTS = Path("prompts")
_FIELD = re.compile(r"\{(\w+)\}")  # other braces, as those of JSON, are text


def make(setting: Setting) -> Teacher:
    options = {name: value for name, value in setting.options.items() if name != "kind"}
    chat = ChatClient(CallStore(setting.calls), **options)
    prompts = Prompts(PROMPTS, setting.domain)
    return LLMTeacher(chat, prompts, setting.catalog, setting.conversations)


class Prompts:
    """The files `recommend`, `judge`, `describe` and `describe_unknown` (`.txt`) of a folder, filled on demand.

    Each has the fields of `_NEEDED`, and may have those of the domain: its words by name, and `{Item}`, which is
    `{item}` with a capital. Raises `InputError` for a file that is missing, and for one that lacks a field or has an
    unknown one.
    """

    def __init__(self, folder: Path, domain: Mapping[str, str]):
        self._words = {**domain, "Item": domain["item"][:1].upper() + domain["item"][1:]}
        self._texts = {name: self._read(folder / f"{name}.txt", needed) for name, needed in _NEEDED.items()}

    def fill(self, name: str, **fields: str) -> str:
        """Return a prompt with its fields replaced; braces in their values stay as they are."""
        values = self._words | fields
        return _FIELD.sub(lambda field: values[field.group(1)], self._texts[name])

    def _read(self, path: Path, needed: set[str]) -> str:
        try:
            text = regular(path).read_text(encoding="utf-8")
            found, known = set(_FIELD.findall(text)), needed | self._words.keys()
            if wrong := (needed - found) | (found - known):
                raise ValueError(f"{{{min(wrong)}}} is missing or unknown; known are {sorted(known)}")
        except (OSError, ValueError) as error:  # also of text that is not UTF-8
            raise InputError(f"{path}: {error}; correct the file (docs/demonstrations.md)") from None
        return text


def metadata_text(answer: str) -> str:
    """Return the labelled lines of a description as one text; empty where it has none or says UNKNOWN."""
    lines = [line.strip() for line in answer.split("\n") if _LABEL.match(line.strip())]
    values = [_LABEL.sub("", line).strip(" .") for line in lines]
    return ". ".join(value for value in values if value and not _UNKNOWN.fullmatch(value))[:_MAX_LENGTH]


def find_passages(titles: Iterable[str], texts: Iterable[str]) -> dict[str, list[str]]:
    """Return for each title up to `PASSAGES` passages around a mention of it (see `Mentions`); one a text."""
    first, *others = dict.fromkeys(titles)
    mentions = Mentions(Catalog([Item(first, None, aliases=tuple(others))]))
    found: dict[str, list[str]] = {}
    for text in texts:
        text = " ".join(text.split())
        for title in mentions.titles([text]):
            passages = found.setdefault(title, [])
            if len(passages) < PASSAGES:
                middle = max(0, text.casefold().find(title.casefold())) + len(title) // 2
                start = max(0, min(middle - PASSAGE_LENGTH // 2, len(text) - PASSAGE_LENGTH))
                passages.append(text[start : start + PASSAGE_LENGTH].strip())
    return found


class LLMTeacher(Teacher):
    """A chat model behind a `ChatClient`; one call rates `CANDIDATES_PER_CALL` candidates.

    Every answer is kept by the client, so an item of a later catalog version that was described is not asked again.
    """

    def __init__(self, chat: ChatClient, prompts: Prompts, catalog: Catalog, conversations: Sequence[Row] = ()):
        self._chat, self._prompts, self._catalog, self._conversations = chat, prompts, catalog, conversations

    def recommend(self, rows: Sequence[Row], list_length: int) -> list[str]:
        prompts = [
            self._prompts.fill("recommend", list_length=str(list_length), conversation=transcript(row["messages"]))
            for row in rows
        ]
        return [answer or "" for answer in self._chat.ask(prompts, "recommend")]

    def judge(self, rows: Sequence[Row], candidates: np.ndarray) -> np.ndarray:
        ratings = np.full(candidates.shape, np.nan, dtype=np.float32)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            places, prompts = [], []
            for row in range(start, min(start + ROWS_AT_ONCE, len(rows))):
                conversation = transcript(rows[row]["messages"])
                real = candidates[row][candidates[row] >= 0]
                for first in range(0, len(real), CANDIDATES_PER_CALL):
                    part = real[first : first + CANDIDATES_PER_CALL]
                    numbered = "\n".join(f"{n}. {self._catalog.items[i]}" for n, i in enumerate(part, start=1))
                    prompts.append(self._prompts.fill("judge", conversation=conversation, candidates=numbered))
                    places.append((row, slice(first, first + len(part))))
            if len(rows) > ROWS_AT_ONCE:
                logger.info("judge: conversations %d to %d of %d", start + 1, row + 1, len(rows))
            for (row, place), answer in zip(places, self._chat.ask(prompts, "judge"), strict=True):
                ratings[row, place] = parse_ratings(answer or "", place.stop - place.start)
        return ratings

    def describe(self, items: Sequence[Item] | Sequence[Entry]) -> list[str]:
        """Return what the model knows of each item, or else makes of what people wrote about it."""
        names, titles = [str(item) for item in items], [item.title for item in items]
        answers = self._chat.ask([self._prompts.fill("describe", title=name) for name in names], "describe")
        texts = [metadata_text(answer or "") for answer in answers]
        open_rows = [row for row, text in enumerate(texts) if not text and answers[row] is not None]
        if open_rows:
            texts_of = (transcript(row["messages"]) for row in self._conversations)
            passages = find_passages([titles[row] for row in open_rows], texts_of)
            quoted = {title: " ".join(f'"{passage}"' for passage in found) for title, found in passages.items()}
            prompts = [
                self._prompts.fill("describe_unknown", title=names[row], passages=quoted.get(titles[row], "nothing"))
                for row in open_rows
            ]
            for row, answer in zip(open_rows, self._chat.ask(prompts, "describe_unknown"), strict=True):
                texts[row] = metadata_text(answer or "")
        return [f"{name}. {text}" if text else name for name, text in zip(names, texts, strict=True)]

    def usage(self) -> dict[str, dict[str, float]]:
        return self._chat.usage()
