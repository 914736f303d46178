"""The canonical conversation rows, their file, their prompt, and their splits."""

import datetime
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from convrec.data.catalog import Catalog
from convrec.data.matching import Truth
from convrec.data.row_files import GROUP, Row, Rows, chosen_rows, column_of, first_of_each
from convrec.project.errors import InputError

ROLES = {  # and other names for them in public data sets
    "user": ("human", "seeker", "customer"),
    "assistant": ("bot", "ai", "gpt", "model", "recommender", "agent"),
    "system": ("developer",),
}
_CANONICAL_ROLES = {name: role for role, others in ROLES.items() for name in (role, *others)}
SPLITS = ("train", "validation", "test")
# A row is a canonical conversation: the columns of `schemas.CONVERSATION_TYPES`, and of a demonstration also its lists.
# It is validated once, where the stage `data` reads it (`rows.usable_rows`).
# The columns of a file of demonstrations that hold the lists after each step; `demonstration` is what SFT learns.
STEP_COLUMNS = {
    "teacher": "teacher",
    "remap": "remap",
    "reflect": "reflect",
    "collaborative": "collaborative",
    "adjust": "demonstration",
}
Days = tuple[datetime.date, datetime.date]  # the first day, and the day after the last
_ROLE = re.compile(r"^(User|Assistant|System): ", re.MULTILINE)


def usable_role(value: object) -> str | None:
    """Return the canonical role that a text names, in any case or by another name (`ROLES`); None where it is none."""
    return _CANONICAL_ROLES.get(value.strip().lower()) if isinstance(value, str) else None


def write_rows(rows: pd.DataFrame, path: Path) -> None:
    """Write rows as Parquet, creating the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows.to_parquet(path, index=False, row_group_size=GROUP)


def read_rows(path: Path) -> Rows:
    """Return the rows of a Parquet file as a lazy sequence of plain Python values."""
    return Rows(pq.ParquetFile(path))


def person_of(row: Row) -> str:
    """Return the person of a row: its `user_id`, or its `conversation_id` if it has none."""
    return row.get("user_id") or row["conversation_id"]


def person_key(row: Row) -> int:
    """Return a number for the person of a row: 63 bits of a hash of the name, which can only be guessed."""
    return _hash(person_of(row))


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def named_titles(row: Row) -> list[str]:
    """Return the titles that a row's conversation names, whether or not they may be recommended again."""
    return [*row["seen_titles"], *(row.get("repeatable_titles") or ())]


def date_of(row: Row) -> str:
    """Return a row's date, as in `2022-03-31`; an empty text where it has none."""
    return str(row.get("date") or "")


def month_of(row: Row) -> str:
    """Return the month of a row's date, as in `2022-03`; an empty text where it has no date."""
    return date_of(row)[:7]


def is_before(rows: Sequence[Row], others: Sequence[Row]) -> bool:
    """Return whether all rows are dated, and of earlier days than all of the others."""
    (first, last), (first_other, _) = (date_span(own) for own in (rows, others))
    return first > "" and last < first_other


def date_span(rows: Sequence[Row]) -> tuple[str, str]:
    """Return the first and the last date of rows, an empty text where one has none, or there is no row."""
    dates = column_of(rows, "date")
    return (dates.min(), dates.max()) if len(dates) else ("", "")


def truths(row: Row) -> list[Truth]:
    """Return a row's ground truth."""
    return [Truth(truth["title"], truth["year"]) for truth in row["groundtruth"]]


def truth_items(row: Row, catalog: Catalog) -> list[int]:
    """Return the catalog items of a row's ground truth, in its order, without what the catalog lacks."""
    found = (catalog.find(truth["title"], truth["year"]) for truth in row["groundtruth"])
    return [index for index in found if index is not None]


def transcript(messages: Iterable[dict[str, str]]) -> str:
    """Return the conversation as text, one line `Role: words` per message."""
    return "\n".join(f"{message['role'].capitalize()}: {message['content']}" for message in messages)


def messages_of(text: str) -> list[dict[str, str]]:
    """Return the messages of a conversation given as text; the inverse of `transcript`.

    A message begins with each line that a role does (`User: …`); what comes before the first is the user's.
    """
    first, *rest = _ROLE.split(text)
    spoken = [("user", first)] if first else []
    spoken += [(role.lower(), words) for role, words in zip(rest[::2], rest[1::2], strict=True)]
    ends = [words.removesuffix("\n") for _, words in spoken[:-1]] + [words for _, words in spoken[-1:]]
    return [{"role": role, "content": words} for (role, _), words in zip(spoken, ends, strict=True)]


def build_prompt(messages: Iterable[dict[str, str]], instruction: str | None, list_length: int) -> list[dict[str, str]]:
    """Return the chat prompt: one user message with the instruction and the whole conversation.

    Without an instruction the messages are the prompt already.
    """
    if instruction is None:
        return [{"role": message["role"], "content": message["content"]} for message in messages]
    content = f"{instruction.format(list_length=list_length)}\n{transcript(messages)}"
    return [{"role": "user", "content": content}]


def with_repeatable(row: Row) -> Row:
    """Return a row whose seen titles, but the disliked ones, may be recommended again: `repeatable_titles`."""
    disliked = row["disliked_titles"]
    repeatable = [title for title in row["seen_titles"] if title not in disliked]
    return row | {"seen_titles": disliked, "repeatable_titles": repeatable}


def prompt_key(messages: list[dict[str, str]]) -> str:
    """Return the `prompt_id` of messages without one; equal messages (and roles) share it."""
    return hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:16]


@overload
def distinct_prompts(rows: Rows, limit: int | None = None) -> Rows: ...  # type: ignore[overload-overlap]
@overload
def distinct_prompts(rows: Sequence[Row], limit: int | None = None) -> list[Row]: ...
def distinct_prompts(rows: Any, limit: int | None = None) -> Any:
    """Return the first row of each prompt, in order; all answers to a prompt share one list.

    If there are more than `limit`, they are drawn by a hash, and nobody's second before all people's first: what few
    people like says little of the others.
    """
    prompts = chosen_rows(rows, first_of_each(column_of(rows, "prompt_id")))
    if limit is None or limit >= len(prompts):
        return prompts
    users, conversations = (column_of(prompts, name) for name in ("user_id", "conversation_id"))
    persons = pd.Series(pd.factorize(users.where(users != "", conversations))[0])
    drawn = np.argsort([_hash(prompt) for prompt in column_of(prompts, "prompt_id")], kind="stable")
    turns = persons[drawn].groupby(persons[drawn]).cumcount().to_numpy()
    return chosen_rows(prompts, np.sort(drawn[turns.argsort(kind="stable")[:limit]]))


def read_prompts(path: Path, limit: int | None = None) -> tuple[list[Row], list[Row]]:
    """Return the rows of at most `limit` prompts of a file (None: all), and these prompts: see `distinct_prompts`."""
    rows = read_rows(path)
    prompts = distinct_prompts(rows, limit)
    return list(rows[rows["prompt_id"].isin(prompts["prompt_id"])]), list(prompts)


def require_filled(splits: Mapping[str, Rows], remedy: str) -> dict[str, Rows]:
    """Return the splits. Raises `InputError`, with the remedy, on an empty one."""
    for name, rows in splits.items():
        if not len(rows):
            raise InputError(f"the {name} split is empty; {remedy}")
    return dict(splits)


def split_by_period(rows: Rows, validation: Days, test: Days) -> dict[str, Rows]:
    """Return train (before the validation period), validation and test (their own periods).

    Later rows, and rows between the periods, are in no split. Raises `InputError` on an empty split.
    """
    dates = rows["date"]
    within = {name: (str(first), str(end)) for name, (first, end) in (("validation", validation), ("test", test))}
    splits = {"train": rows[dates < within["validation"][0]]}
    splits |= {name: rows[(dates >= first) & (dates < end)] for name, (first, end) in within.items()}
    counts = dates.str.slice(0, 7).value_counts().sort_index()
    last = ", ".join(f"{month} ({number:,})" for month, number in counts.tail(6).items())
    present = f"the rows reach from {dates.min()} to {dates.max()}, the last months with rows are {last}"
    return require_filled(splits, f"{present}: choose data.validation_period and data.test_period within")


def split_by_person(rows: Rows, held_out_share: float, seed: int) -> dict[str, Rows]:
    """Return splits in which every person lies whole in one split, drawn by a hash of seed and person.

    A person is a `user_id`, or a conversation without one. Validation and test have the share in the mean. A person
    keeps its split when others are added, so a refresh does not test on what an earlier model learned from. Raises
    `InputError` on an empty split.
    """
    users = rows["user_id"]
    numbers, people = pd.factorize(users.where(users != "", rows["conversation_id"]))
    hashes = (hashlib.sha256(f"split {seed} {name}".encode()).digest() for name in people)
    draws = np.array([int.from_bytes(found[:6]) / 2**48 for found in hashes])[numbers]  # uniform in [0, 1)
    is_test, is_held_out = draws < held_out_share, draws < 2 * held_out_share
    splits = {"train": rows[~is_held_out], "validation": rows[is_held_out & ~is_test], "test": rows[is_test]}
    return require_filled(splits, "raise data.held_out_share, or give more data")
