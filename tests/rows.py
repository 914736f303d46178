"""Items, canonical rows of conversations, and the scores of one list."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from convrec.data.catalog import Catalog, Item
from convrec.data.matching import make_target
from convrec.data.parsing import read_list
from convrec.evaluation.scoring import quality


def make_items(lines: str) -> list[Item]:
    """Return the items of these lines, as in `Heat (1995) | Chess = Schach`: year and aliases if the line has some."""
    items = []
    for line, *aliases in (line.split(" = ") for line in lines.split(" | ")):
        title, year = re.fullmatch(r"(.+?)(?: \((\d{4})\))?", line).groups()
        items.append(Item(title, year and int(year), aliases=tuple(aliases)))
    return items


def make_row(
    prompt: str, liked: Iterable[tuple[str, int | None]] = (), text: str = "Hello", **more: Any
) -> dict[str, Any]:
    """Return a row with one message of the user; `more` are columns."""
    row: dict[str, Any] = {"conversation_id": prompt, "prompt_id": prompt, "user_id": "", "date": ""}
    row["messages"] = [{"role": "user", "content": text}]
    row["groundtruth"] = [{"title": title, "year": year} for title, year in liked]
    return {**row, "seen_titles": [], "disliked_titles": [], **more}


def list_quality(text: str, seen_titles: Sequence[str], catalog: Catalog, num_ranks: int) -> dict[str, float]:
    """Return the `Quality` of one list by name."""
    return quality(read_list(text, catalog), make_target([], seen_titles, catalog), catalog, num_ranks)._asdict()
