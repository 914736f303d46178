"""Catalogs and conversations as tables, to compare."""

import json

import pandas as pd

from convrec.data.titles import normalise


def film(title, year=None, aliases=(), item_id=None, **metadata):
    made = normalise(title).replace(" ", "-") + ("" if year is None else f"_{year}")
    row = {"item_id": item_id or made, "title": title, "year": year, "aliases": list(aliases)}
    return {**row, "metadata": json.dumps(metadata)}


def catalog_of(*items):
    columns = ["item_id", "title", "year", "aliases", "metadata"]
    return pd.DataFrame(items, columns=columns).astype({"year": "Int64"})


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


def ids(names):
    return [name.item_id for name in names]
