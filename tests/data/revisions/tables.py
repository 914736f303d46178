"""Catalogs and conversations to compare."""

import pandas as pd

from convrec.data.catalog import Item
from convrec.data.titles import normalise


def film(title, year=None, aliases=(), item_id=None, **metadata):
    made = normalise(title).replace(" ", "-") + ("" if year is None else f"_{year}")
    return Item(title, year, metadata, tuple(aliases), item_id or made)


def talk(text, truths=(("Heat", 1995),), seen=(), date="2024-01-05", prompt_id=None):
    return {
        "conversation_id": "any",
        "prompt_id": prompt_id or text,
        "date": date,
        "messages": [{"role": "user", "content": text}],
        "groundtruth": [{"title": title, "year": year} for title, year in truths],
        "seen_titles": list(seen),
    }


def table(*rows):
    return pd.DataFrame(rows, columns=list(talk("")))
