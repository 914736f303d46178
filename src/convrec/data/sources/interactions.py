"""A log of interactions as conversations: a history in words, and what the user liked next (docs/data.md)."""

import datetime
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from convrec.data.conversations import messages_of, prompt_key
from convrec.data.quarantine import Quarantine
from convrec.data.row_files import Row
from convrec.data.schemas import spooled
from convrec.data.sources.interaction_log import read_log
from convrec.data.sources.item_files import read_items
from convrec.data.sources.source import Source
from convrec.project.errors import InputError

_FILES = (
    *(("u.data", "u.item"), ("ratings.dat", "movies.dat")),
    *(("ratings.csv", "movies.csv"), ("ratings.csv", "items.csv")),
)
TEMPLATES = Path(__file__).with_name("histories.txt")
_OPTION = re.compile(r"\[([^\[\]]*)\]")
_NAME = re.compile(r"\{(\w+)\}")
_STATED_GENRES = 0.5  # share of the conversations that name genres, if the items have any
_NUM_GENRES = 2  # at most


def find_files(folder: Path, log: str | None, items: str | None) -> tuple[Path, Path]:
    """Return the files of the log and of the items: those that are given, else those of known names in the folder.

    Of the Amazon reviews these are `NAME.jsonl` and `meta_NAME.jsonl`. Raises `InputError` where there is none.
    """
    there = sorted(path.name for path in folder.glob("*") if path.is_file())
    amazon = [(name.removeprefix("meta_"), name) for name in there if name.startswith("meta_")]
    for known in (*_FILES, *amazon):
        names = log or known[0], items or known[1]
        if {*names} <= {*there}:
            return folder / names[0], folder / names[1]
    raise InputError(
        f"data.path = {str(folder)!r}: no log {log or 'of a known name'} with items {items or 'of a known name'} there "
        f"(found {', '.join(there)[:200]}); give their names in data.interactions.log and data.catalog"
    )


class Sizes(NamedTuple):
    """How many of the most recent items a conversation names, and how many of the next liked ones are ground truth."""

    prompts_per_user: int
    min_liked: int = 2
    max_liked: int = 6
    max_disliked: int = 2
    num_truths: int = 5

    def num_prompts(self, likes: np.ndarray) -> np.ndarray:
        """Return how many conversations users with so many liked items give, at most. Shape: that of `likes`."""
        return np.clip(likes.astype(np.int64) - self.min_liked, 0, self.prompts_per_user)


class Moment(NamedTuple):
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

    Named are the last liked and disliked items before, the ground truth is the next liked ones, within the period of
    the first. The history, the indices of `items`, is in order of time. Shapes: (n,), all four.
    """
    likes, dislikes = np.flatnonzero(is_liked), np.flatnonzero(~is_liked)
    cuts = np.arange(sizes.min_liked, len(likes))
    for cut in np.sort(rng.choice(cuts, min(len(cuts), sizes.prompts_per_user), replace=False)):
        first = likes[cut]
        truths = _once(likes[cut:], items)[: sizes.num_truths]
        within = periods[truths] == periods[first]
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
    """The conversations of histories.txt; `item` and `items` are the words of the domain.

    Raises `InputError` for an unknown word in braces, or a brace without its other one.
    """

    def __init__(self, item: str, items: str):
        self._domain = {"item": item, "items": items}
        lines = TEMPLATES.read_text(encoding="utf-8").splitlines()
        text = "\n".join(line for line in lines if not line.startswith("#"))
        self._templates = re.split(r"\n(?:[^\S\n]*\n)+", text.strip())
        for template in self._templates:
            try:
                _OPTION.sub(r"\1", template).format(liked="", disliked="", genres="", **self._domain)
            except (LookupError, ValueError, AttributeError) as error:
                reason = f"{type(error).__name__}: {error}"
                raise InputError(f"{TEMPLATES}: {template!r:.200} is no template ({reason}); correct it") from None

    def write(
        self, liked: Sequence[str], disliked: Sequence[str], genres: Sequence[str], rng: np.random.Generator
    ) -> list[dict[str, str]]:
        """Return the messages of one conversation."""
        template = self._templates[int(rng.integers(len(self._templates)))]
        states_genres = rng.random() < _STATED_GENRES
        words = self._domain | {
            "liked": _joined(liked),
            "disliked": _joined(disliked),
            "genres": _joined(genres) if states_genres else "",
        }

        def option(match: re.Match[str]) -> str:
            return match.group(1) if all(words[name] for name in _NAME.findall(match.group(1))) else ""

        text = _OPTION.sub(option, template).format(**words)
        return messages_of("\n".join(" ".join(line.split()) for line in text.split("\n")))


def _joined(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def read_interactions(
    folder: Path,
    quarantine: Quarantine,
    *,
    log: str | None,
    catalog: str | None,
    columns: Mapping[str, str | None],
    liked: float | list[str],
    disliked: float | list[str] | None,
    max_prompts: int,
    split_days: Sequence[datetime.date],
    domain: tuple[str, str],
    seed: int,
    line_column: str | None = None,
    repeats: bool = False,
    **sizes: Any,
) -> Source:
    """Return the catalog and the canonical rows: one row for each moment at which a user is asked.

    `log` and `catalog` are the names of their files (None: known names), `columns` those of the log's columns and of
    the items' genres, `liked` and `disliked` the thresholds or events of `read_log`. No ground truth crosses
    the beginning of one of the `split_days` (in UTC), so none reaches into a later split. `domain` has the words for
    one item and for several. With `repeats`, an item counts each time that it is taken, else the first time. `sizes`
    are the fields of `Sizes`. Raises `InputError` if a file cannot be read, and if there is no row.
    """
    log_path, items_path = find_files(folder, log, catalog)
    words, limits = Templates(*domain), Sizes(**sizes)
    items, indices = read_items(items_path, quarantine, line_column)
    taken = read_log(log_path, columns, liked, disliked, limits.num_prompts, max_prompts, seed, quarantine)
    taken = _with_items(taken, indices, quarantine)
    if not repeats:
        taken = taken.unique(["user", "index"], keep="first", maintain_order=True)
    starts = [int(datetime.datetime.fromisoformat(f"{day}T00:00+00:00").timestamp()) for day in split_days]
    genres = columns.get("genres") or "genres"
    of_item = [own.split(", ") if (own := item.metadata.get(genres)) else [] for item in items.items]

    def rows() -> Iterator[Row]:
        for (user,), history in taken.group_by("user", maintain_order=True):
            rng = user_rng(seed, str(user))
            index, is_liked, times = (history[name].to_numpy() for name in ("index", "liked", "time"))
            order = np.lexsort((rng.random(len(times)), times))  # items with the same time have no order
            index, is_liked, times = index[order], is_liked[order], times[order]
            periods = np.searchsorted(starts, times, side="right")
            for moment in moments(index, times, is_liked, periods, limits, rng):
                quarantine.count("groundtruth", len(moment.truths))
                likes, dislikes = (
                    [str(items.items[index[n]]) for n in part] for part in (moment.liked, moment.disliked)
                )
                said = Counter(genre for n in reversed(moment.past) for genre in of_item[index[n]])
                messages = words.write(likes, dislikes, [genre for genre, _ in said.most_common(_NUM_GENRES)], rng)
                truths = [items.items[index[n]] for n in moment.truths]
                yield {
                    "conversation_id": f"{user}-{len(moment.past)}",
                    "prompt_id": prompt_key(messages),
                    "user_id": user,
                    "date": datetime.datetime.fromtimestamp(moment.asked, datetime.UTC).strftime("%Y-%m-%d"),
                    "messages": messages,
                    "groundtruth": [{"title": item.title, "year": item.year} for item in truths],
                    "seen_titles": [*likes, *dislikes],  # lines: each is that item alone, whatever else has its title
                    "disliked_titles": dislikes,
                }

    found = spooled(rows())
    if not len(found):
        raise InputError(f"{log_path}: no user has liked enough items of {items_path}: are their ids the same?")
    return Source(items, found)


def _with_items(log: pl.DataFrame, indices: Mapping[str, int], quarantine: Quarantine) -> pl.DataFrame:
    """Return the rows with the index of each item; ids without an item are kept aside, once."""
    ids = log["item"].unique().sort().to_list()
    quarantine.count("items of the log", len(ids))
    for own_id in ids:
        if own_id not in indices:
            quarantine.add("items of the log", own_id, "not in the items file", own_id)
    index = pl.col("item").replace_strict(indices, default=None, return_dtype=pl.Int64)
    return log.with_columns(index=index).drop_nulls("index")
