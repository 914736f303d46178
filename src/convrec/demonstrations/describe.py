"""Texts of items that the catalog says nothing about, written by the teacher."""

import re
from collections.abc import Iterable, Sequence

from convrec.data.titles import normalise
from convrec.data.unspaced import UnspacedTitles, without_runs
from convrec.demonstrations.chat import ChatClient
from convrec.demonstrations.teacher_prompts import Prompts

PASSAGES, PASSAGE_LENGTH = 3, 300  # of what people wrote about an item: how many, and their characters
_MAX_LENGTH = 1000
_UNKNOWN = re.compile(r"\bunknown\b", re.IGNORECASE)
_LABEL = re.compile(r"^\W*(genres|keywords|people|plot)\W*:\W*", re.IGNORECASE)


def metadata_text(answer: str) -> str:
    """Return the labelled lines of a description as one text; empty where it has none or says UNKNOWN."""
    lines = [line.strip() for line in answer.splitlines() if _LABEL.match(line.strip())]
    values = [_LABEL.sub("", line).strip(" .") for line in lines]
    return ". ".join(value for value in values if value and not _UNKNOWN.fullmatch(value))[:_MAX_LENGTH]


def find_passages(titles: Iterable[str], texts: Iterable[str]) -> dict[str, list[str]]:
    """Return for each title up to `PASSAGES` passages around a mention of it, in any spelling; one a text.

    Titles of a single short word are not looked for: as words they mean something else.
    """
    wanted: dict[str, list[str]] = {}
    titles = list(dict.fromkeys(titles))
    for title in titles:
        if len(normalise(title)) > 5 and without_runs(title) == title:
            wanted.setdefault(normalise(title), []).append(title)
    by_first: dict[str, set[int]] = {}  # the first word of a title -> the lengths, in words, of such titles
    for key in wanted:
        words = key.split()
        by_first.setdefault(words[0], set()).add(len(words))
    unspaced = UnspacedTitles(titles)
    found: dict[str, list[str]] = {}
    for text in texts:
        places = (place for place in unspaced.places(text) if place.is_word)
        for title, start in {place.title: place.start for place in places}.items():
            _keep(found, title, _around(text, title, start / len(text)))
        words = normalise.__wrapped__(text).split()  # not kept in its cache
        named: dict[str, int] = {}
        for at, word in enumerate(words):
            for length in by_first.get(word, ()):
                key = " ".join(words[at : at + length])
                if key in wanted:
                    named.setdefault(key, at)
        for key, at in named.items():
            for title in wanted[key]:
                _keep(found, title, _around(text, title, at / len(words)))
    return found


def _keep(found: dict[str, list[str]], title: str, passage: str) -> None:
    passages = found.setdefault(title, [])
    if len(passages) < PASSAGES:
        passages.append(passage)


def _around(text: str, title: str, share: float) -> str:
    """Return the part of a text around a title that is mentioned after about this share of it, in some spelling."""
    text = " ".join(text.split())
    at = text.casefold().find(title.casefold())
    middle = int(share * len(text)) if at < 0 else at + len(title) // 2
    start = max(0, min(middle - PASSAGE_LENGTH // 2, len(text) - PASSAGE_LENGTH))
    return text[start : start + PASSAGE_LENGTH].strip()


class Describer:
    """Asks a chat model what an item is: first whether it knows it, else what it makes of what people wrote.

    Every answer is kept by the client, so an item of a later catalog version that was described is not asked again.
    """

    def __init__(self, chat: ChatClient, prompts: Prompts, conversations: Sequence[str]):
        self._chat, self._prompts, self._conversations = chat, prompts, conversations

    def describe(self, names: Sequence[str], titles: Sequence[str]) -> list[str]:
        """Return a text for each item: its name ("Title (Year)", or the title alone), and what it is like if told."""
        answers = self._chat.ask([self._prompts.fill("describe", title=name) for name in names], "describe")
        texts = [metadata_text(answer or "") for answer in answers]
        open_rows = [row for row, text in enumerate(texts) if not text and answers[row] is not None]
        if open_rows:
            passages = find_passages([titles[row] for row in open_rows], self._conversations)
            prompts = [
                self._prompts.fill(
                    "describe_unknown", title=names[row], passages=_quoted(passages.get(titles[row], []))
                )
                for row in open_rows
            ]
            for row, answer in zip(open_rows, self._chat.ask(prompts, "describe_unknown"), strict=True):
                texts[row] = metadata_text(answer or "")
        return [f"{name}. {text}" if text else name for name, text in zip(names, texts, strict=True)]


def _quoted(passages: Sequence[str]) -> str:
    return " ".join(f'"{passage}"' for passage in passages) or "nothing"
