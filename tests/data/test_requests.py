"""Requests about the embedded films, written and labelled without sight of the reader: how many wishes it reads.

Each label has its kind, the catalog's value or the limit, and the user's words (docs/recommender.md has the table). A
wish for what no column has is read if it is told. A limit against a list that was shown needs the right side alone.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from convrec.data.sources.synthetic import embedded_catalog
from convrec.data.titles import fold, title_and_year
from convrec.data.wish_marks import words_of
from convrec.data.wish_reader import wish_reader
from convrec.data.wishes import Wish

REQUESTS = [json.loads(line) for line in Path(__file__).with_name("requests.jsonl").read_text().splitlines()]
READER = wish_reader(embedded_catalog())
COUNTRIES = {"united states": "usa", "united kingdom": "uk", "south korea": "korea"}  # as the catalog has them
AGAINST = ("no ", "not ", "less ")
LOW = r"(?:since|after|at least|over|newer than|more recent than|longer than) "
HIGH = r"(?:until|before|at most|under|older than|shorter than) "
SLACK = {"year": 1, "runtime": 10}


def _is_limit(label: dict[str, Any], text: str) -> bool:
    """Return whether a wish's text limits the label's column from the same sides, by about the same numbers."""
    column, what = label["column"], label["what"]
    is_span, is_relative = not re.search(f"{LOW}|{HIGH}", text), " than " in text
    sides = [is_span or bool(re.search(pattern, text)) for pattern in (LOW, HIGH)]
    if sides != [bool(re.search(rf"\d<=?{column}|{column}>", what)), f"{column}<" in what]:
        return False
    wanted, stated = (list(map(int, re.findall(r"\d+", said))) for said in (what, text))
    is_near = all(any(abs(one - two) <= SLACK[column] for two in stated) for one in wanted)
    is_time = "minutes" in text or bool(re.search(r"\b(?:longer|shorter) than", text))
    return (is_relative or is_near) and is_time == (column == "runtime")


def _read(label: dict[str, Any], wishes: list[Wish]) -> str:
    """Return right, wrong, reversed, asked, told or silent."""
    kind, what = label["kind"], title_and_year(label["what"])[0]
    what = COUNTRIES.get(fold(what), fold(what))
    states = {wish.state: [own.text for own in wishes if own.state == wish.state] for wish in wishes}
    applied = [*states.get("kept", ()), *states.get("preferred", ())]
    wanted = [text for text in applied if not text.startswith(AGAINST)]
    denied = [text for text in states.get("kept", ()) if text.startswith(AGAINST)]
    lessened = [text for text in states.get("preferred", ()) if text.startswith(AGAINST)]

    start = what[:4] if label["column"] in ("country", "language") else what  # "Sweden" may be told as "Swedish"

    def has(texts: list[str]) -> bool:
        return any(start in fold(text) for text in texts)

    told = words_of(" ".join([*states.get("unknown", ()), *states.get("tried", ())]))
    is_told, named = not set(told).isdisjoint(words_of(label["words"])), states.get("named", [])
    amounts = ["minutes" in text for text in [*wanted, *lessened] if any(map(str.isdigit, text))]
    is_year_denied = any(any(map(str.isdigit, text)) for text in denied)
    in_unit = (label["column"] == "runtime") in amounts
    is_limit = label["kind"] == "limit" and any(_is_limit(label, text) for text in wanted)
    is_lessened = any(words_of(text)[1:] == words_of(label["words"])[-1:] for text in lessened)  # "less scary"
    by_kind = {
        "want": (has(wanted), has(denied), False),
        "exclude": (has(denied) or (label["column"] == "year" and is_year_denied), has(wanted), has(named)),
        "limit": (is_limit, False, in_unit),
        "less": (
            has(lessened) or is_lessened or (label["column"] == "runtime" and in_unit),
            False,
            has(denied) or has(wanted),
        ),
        "like_title": (has(named), has(denied), False),
        "seen_title": (has(denied), False, has(named)),
        "dislike_title": (has(denied), False, has(named)),
        "unknown": (is_told, False, False),
    }
    is_right, is_reversed, is_wrong = by_kind[kind]
    found = {"right": is_right, "reversed": is_reversed, "wrong": is_wrong, "asked": has(states.get("unsure", []))}
    return next((name for name, is_so in [*found.items(), ("told", is_told)] if is_so), "silent")


def test_most_wishes_are_read_rightly_and_few_are_silent():
    counts: Counter[str] = Counter()
    for request in REQUESTS:
        wishes = READER.read(request["messages"])
        counts.update(_read(label, wishes) for label in request["wishes"])
    assert counts.total() == 746 and len(REQUESTS) == 210
    assert counts["right"] >= 670 and counts["reversed"] == 0 and counts["silent"] <= 18, counts
