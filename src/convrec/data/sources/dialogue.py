"""The simulated users' conversations: requests of one to three turns, built from phrases, with typos."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from convrec.project.yaml import read_yaml


@cache
def load_phrases() -> dict[str, Any]:
    """Return the phrases of phrases.yaml by kind; `moods` maps a genre to other words for it."""
    return read_yaml(Path(__file__).with_name("phrases.yaml"))


@dataclass
class Request:
    """The content of a user's request; every list may be empty."""

    genres: Sequence[str]
    themes: Sequence[str] = ()
    liked: Sequence[str] = ()
    disliked: Sequence[str] = ()
    disliked_genre: str | None = None
    decade: int | None = None
    wants_famous: bool = False


def _join(rng: np.random.Generator, parts: Sequence[str]) -> str:
    if len(parts) < 2:
        return "".join(parts)
    return ", ".join(parts[:-1]) + str(rng.choice([" and ", " and ", " or "])) + parts[-1]


def _pick(rng: np.random.Generator, phrases: Sequence[str], **words: str) -> str:
    return str(rng.choice(np.array(phrases, dtype=object))).format(**words)


def add_typos(rng: np.random.Generator, text: str, rate: float) -> str:
    """Return the text with about `rate` of its words mistyped: two letters swapped, or one dropped or doubled."""
    words = text.split(" ")
    for position in np.flatnonzero(rng.random(len(words)) < rate):
        word = words[position]
        if len(word) < 4 or not word.isalpha():
            continue
        at = int(rng.integers(1, len(word) - 1))
        swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        words[position] = str(rng.choice([swapped, word[:at] + word[at + 1 :], word[:at] + word[at] + word[at:]]))
    return " ".join(words)


def _taste_phrase(rng: np.random.Generator, request: Request) -> str:
    phrases = load_phrases()
    moods = phrases["moods"]
    adjectives = [
        str(rng.choice(moods[genre])) if genre in moods and rng.random() < 0.3 else genre for genre in request.genres
    ]
    if not adjectives:
        return str(rng.choice(phrases["anything"]))
    return _pick(rng, phrases["tastes"], genres=" ".join(adjectives))


def write_conversation(
    rng: np.random.Generator, request: Request, openings: str = "greetings", typo_rate: float = 0.02
) -> list[dict[str, str]]:
    """Return the messages of one request, alternating user and assistant, the user first and last.

    Between two turns of the user, the assistant asks a question or gives a list. A phrase of the kind `openings` stands
    before the first turn.
    """
    phrases = load_phrases()
    opening = _pick(rng, phrases["requests"], taste=_taste_phrase(rng, request))
    facts = []
    if request.themes:
        facts.append(_pick(rng, phrases["themes"], themes=_join(rng, request.themes)))
    if request.decade is not None:
        century = f"{request.decade}s" if rng.random() < 0.5 else f"{request.decade % 100:02d}s"
        facts.append(_pick(rng, phrases["decades"], decade=century))
    if request.wants_famous and rng.random() < 0.4:
        facts.append(_pick(rng, phrases["famous"]))
    if request.liked:
        facts.append(_pick(rng, phrases["likes"], films=_join(rng, request.liked)))
    if request.disliked:
        facts.append(_pick(rng, phrases["disliked_films"], films=_join(rng, request.disliked)))
    if request.disliked_genre:
        facts.append(_pick(rng, phrases["dislikes"], genre=request.disliked_genre))
    if len(facts) > 1 and rng.random() < 0.4:
        order = rng.permutation(len(facts))
        facts = [facts[i] for i in order]
    turns = min(int(rng.choice([1, 1, 1, 2, 2, 3])), len(facts) + 1)
    shares: list[list[str]] = [[opening], *([] for _ in range(turns - 1))]
    for position, fact in enumerate(facts):
        shares[min(turns - 1, position * turns // max(1, len(facts)))].append(fact)
    messages = []
    for turn, parts in enumerate(part for part in shares if part):
        if turn:
            messages.append({"role": "assistant", "content": _pick(rng, phrases["questions"] + phrases["lists"])})
        start = _pick(rng, phrases[openings]) if turn == 0 else ""
        text = " ".join(part for part in (start, ", ".join(parts)) if part)
        messages.append({"role": "user", "content": add_typos(rng, text, typo_rate)})
    messages[-1]["content"] = " ".join([messages[-1]["content"], _pick(rng, phrases["closings"])]).strip()
    return messages


def write_change_of_mind(rng: np.random.Generator, first: Request, last: Request) -> list[dict[str, str]]:
    """Return a conversation in which the user asks for one thing, gets a list, and then asks for another.

    Half of the first wishes are short: they only name genres.
    """
    if rng.random() < 0.5:
        first = Request(first.genres)
    answer = {"role": "assistant", "content": _pick(rng, load_phrases()["lists"])}
    return [*write_conversation(rng, first), answer, *write_conversation(rng, last, "changes")]
