"""Interaction histories as conversations: the moments at which a user asks, and the templates for the words.

A template is a whole conversation. What stands in brackets in it is optional (see histories.txt beside this module).
"""

import hashlib
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from convrec.data.conversations import messages_of
from convrec.project.errors import InputError

SHIPPED = Path(__file__).with_name("histories.txt")
_OPTION = re.compile(r"\[([^\[\]]*)\]")
_FORM = re.compile(r"(?:(?:User|Assistant): [^\[\]\n]*\w[^\[\]\n]*\n)*User: [^\[\]\n]*\w[^\[\]\n]*")  # without options
_STATED_GENRES = 0.5  # share of the conversations that name genres, if the items have any
_NUM_GENRES = 2  # at most


@dataclass(frozen=True)
class Sizes:
    """How much of a history a conversation names, and what its ground truth is: see `config.Interactions`."""

    min_liked: int
    max_liked: int
    max_disliked: int
    num_truths: int
    window_days: float | None
    prompts_per_user: int

    def num_prompts(self, likes: np.ndarray) -> np.ndarray:
        """Return how many conversations users with so many liked items give, at most. Shape: that of `likes`."""
        return np.clip(likes.astype(np.int64) - self.min_liked, 0, self.prompts_per_user)


@dataclass(frozen=True)
class Moment:
    """A moment of one user: the items named and the ground truth, as positions in the user's history in order of time.

    Each item stands there once: in `liked` and `disliked` as it was taken last, in `truths` as it is taken next. `past`
    is everything that was liked before, `asked` is the time of the first item of the ground truth.
    """

    liked: list[int]
    disliked: list[int]
    past: list[int]
    truths: list[int]
    asked: int


def _once(positions: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return the first position of each item among the positions, in their order."""
    return positions[np.sort(np.unique(items[positions], return_index=True)[1])]


def moments(
    items: np.ndarray,
    times: np.ndarray,
    is_liked: np.ndarray,
    periods: np.ndarray,
    sizes: Sizes,
    rng: np.random.Generator,
) -> Iterator[Moment]:
    """Yield the moments that one user is asked about, drawn among those with enough liked items before and one after.

    Named are the last liked and disliked items before, the ground truth is the next liked ones, within the window and
    the period of the first. The history, the indices of `items`, is in order of time. Shapes: (n,), all four.
    """
    likes, dislikes = np.flatnonzero(is_liked), np.flatnonzero(~is_liked)
    cuts = np.arange(sizes.min_liked, len(likes))
    for cut in np.sort(rng.choice(cuts, min(len(cuts), sizes.prompts_per_user), replace=False)):
        first = likes[cut]
        truths = _once(likes[cut:], items)[: sizes.num_truths]
        within = periods[truths] == periods[first]
        if sizes.window_days is not None:
            within &= times[truths] <= times[first] + sizes.window_days * 86_400
        number = int(rng.integers(sizes.min_liked, sizes.max_liked + 1))
        num_disliked = int(rng.integers(0, sizes.max_disliked + 1))
        liked = _once(likes[:cut][::-1], items)
        if len(liked) < sizes.min_liked:
            continue
        before = _once(dislikes[: np.searchsorted(dislikes, first)][::-1], items)
        disliked = before[~np.isin(items[before], items[likes[:cut]])]
        yield Moment(
            liked=np.sort(liked[:number]).tolist(),
            disliked=np.sort(disliked[:num_disliked]).tolist(),
            past=likes[:cut].tolist(),
            truths=truths[within].tolist(),
            asked=int(times[first]),
        )


def user_rng(seed: int, user: str) -> np.random.Generator:
    """Return the generator of a user: it depends on the seed and the user's id alone, not on who else is in the log."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(f"{seed}/{user}".encode()).digest()[:16]))


class Templates:
    """The conversations that a file of templates holds; `item` and `items` are the words of the domain.

    Raises `InputError` naming the file and the template that cannot be used.
    """

    def __init__(self, path: Path, item: str, items: str):
        self._domain = {"item": item, "items": items}
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{path}: no readable file of templates ({error}); see data.interactions.templates"
            ) from None
        text = "\n".join(line.rstrip() for line in lines if not line.startswith("#"))
        self._templates = [template.strip() for template in text.split("\n\n") if template.strip()]
        if not self._templates:
            raise InputError(f"{path}: it holds no template; {SHIPPED.name} of the package shows what one is")
        for template in self._templates:
            _check(template, path)

    def write(
        self, liked: Sequence[str], disliked: Sequence[str], genres: Sequence[str], rng: np.random.Generator
    ) -> tuple[list[dict[str, str]], bool]:
        """Return the messages of one conversation, and whether it names the disliked items."""
        template = self._templates[int(rng.integers(len(self._templates)))]
        states_genres = rng.random() < _STATED_GENRES
        words = self._domain | {
            "liked": _joined(liked),
            "disliked": _joined(disliked),
            "genres": _joined(genres) if states_genres else "",
        }
        names_disliked = bool(disliked) and "{disliked}" in template

        def option(match: re.Match[str]) -> str:
            return match.group(1) if all(words[name] for name in _names(match.group(1))) else ""

        text = _OPTION.sub(option, template).format(**words)
        text = "\n".join(" ".join(line.split()) for line in text.splitlines())
        return messages_of(text), names_disliked


def _names(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


def _check(template: str, path: Path) -> None:
    """Raise `InputError` for a template that cannot be used."""
    bare = _OPTION.sub("", template)
    try:
        is_usable = bool(_FORM.fullmatch(bare)) and "liked" in _names(bare) <= {"liked", "item", "items"}
        is_usable &= _names(template) <= {"liked", "item", "items", "disliked", "genres"}
    except ValueError:  # a brace that is not closed
        is_usable = False
    if not is_usable:
        raise InputError(
            f"{path}: template {template[:60]!r}: each line begins with 'User: ' or 'Assistant: ', the last one with "
            "'User: ', and has words outside of [brackets]; {liked}, {item} and {items} may stand anywhere, {disliked} "
            "and {genres} within [brackets], {liked} must stand outside of them"
        )


def _joined(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def most_common_genres(genres: Sequence[Sequence[str]]) -> list[str]:
    """Return the genres that most of the items have, at most two; the first named comes first where they are even."""
    counts = Counter(genre for of_item in genres for genre in of_item)
    return [genre for genre, _ in counts.most_common(_NUM_GENRES)]
