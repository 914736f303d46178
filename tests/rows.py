"""Canonical rows of conversations, and the scores of one list."""

from collections.abc import Iterable, Sequence
from typing import Any

from convrec.data.catalog import Catalog
from convrec.data.matching import make_target
from convrec.data.parsing import read_list
from convrec.evaluation.scoring import quality


def make_row(
    prompt: str, liked: Iterable[tuple[str, int | None]] = (), text: str = "Hello", **more: Any
) -> dict[str, Any]:
    """Return a row with one message of the user; `more` are columns."""
    return {
        "conversation_id": prompt,
        "prompt_id": prompt,
        "user_id": "",
        "date": "",
        "messages": [{"role": "user", "content": text}],
        "groundtruth": [{"title": title, "year": year} for title, year in liked],
        "seen_titles": [],
        "disliked_titles": [],
        **more,
    }


def list_quality(text: str, seen_titles: Sequence[str], catalog: Catalog, num_ranks: int) -> dict[str, float]:
    """Return the `Quality` of one list by name."""
    return quality(read_list(text, catalog), make_target([], seen_titles, catalog), catalog, num_ranks)._asdict()
