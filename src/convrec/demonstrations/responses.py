"""`convrec parse` and `convrec remap`: files of a language model's answers, outside the graph."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from convrec.classical.embedding import SentenceEmbedder, TfidfEmbedder
from convrec.classical.scores import top_items
from convrec.data.catalog import Catalog
from convrec.data.catalog_files import open_catalog
from convrec.data.conversations import transcript
from convrec.data.json_lines import json_lines
from convrec.data.parsing import Entry, parse_line
from convrec.data.titles import line
from convrec.demonstrations.answers import ParsedAnswer, parse_answer
from convrec.demonstrations.chat import sendable
from convrec.demonstrations.grounding import KINDS, Grounder, Match
from convrec.demonstrations.remap import SOURCES, remap
from convrec.project.atomic import check_target, write_text
from convrec.project.errors import InputError
from convrec.project.text import plain


class Response(NamedTuple):
    """One row of a file of responses."""

    conversation: str
    response: str
    seen: list[str]
    row: dict[str, Any]  # as it was read


def read_responses(path: Path, with_conversation: bool) -> list[Response]:
    """Return the rows of a JSON-lines file: `response`, and `conversation` and `seen` (titles; optional) where needed.

    Raises `InputError` naming the row for rows of another form.
    """
    if not path.is_file():
        raise InputError(f"--responses {path}: no such file")
    found = []
    for number, row in json_lines(path):
        try:
            conversation, seen = row["conversation"] if with_conversation else "", row.get("seen") or []
            text = conversation if isinstance(conversation, str) else transcript(conversation)
            titles = [seen] if isinstance(seen, str) else seen
            found.append(Response(sendable(text), sendable(row["response"]), [*map(sendable, titles)], row))
        except (KeyError, TypeError, AttributeError):
            raise InputError(
                f"{path}: line {number}: give the fields `response` (a text), `conversation` (for `remap`: a text, or "
                "a list of {role, content}) and `seen` (if any: a list of titles)"
            ) from None
    if not found:
        raise InputError(f"{path}: it holds no row; give one JSON object with `response` a line")
    return found


def _place(entry: Entry, match: Match | None, catalog: Catalog) -> dict[str, Any]:
    """Return an entry's title and year as written, the kind of its match, and the matched item."""
    items = [str(catalog.items[index]) for index in match.indices] if match else []
    return {"title": entry.title, "year": entry.year, "match": match.kind if match else None, "items": items}


def _lines(number: int, answer: ParsedAnswer, places: list[dict[str, Any]]) -> Iterator[str]:
    yield f"Response {number}: {len(places)} items"
    for rank, place in enumerate(places, start=1):
        written = plain(line(place["title"], place["year"]))
        named = plain(" or ".join(place["items"]))
        tail = "" if named in ("", written) else f" → {named}"
        yield f"{rank:4}  {written}  [{place['match'] or 'not in the catalog'}]{tail}"
    for dropped in answer.dropped:
        yield f"      dropped line {dropped.line} ({dropped.reason}): {plain(dropped.text)}"


def print_parsed(
    responses: Path, catalog_path: Path, grounding: tuple[float, float], out: Path | None
) -> Iterator[str]:
    """Yield the lines to print for a file of responses: items with matches, dropped lines with reasons, and counts.

    With `out`, the same is written there as JSON lines.
    """
    if out is not None:
        check_target(out, "--out")
    rows = read_responses(responses, with_conversation=False)
    catalog, summary = open_catalog(catalog_path)
    lengths: Counter[int] = Counter()
    kinds: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    written = []
    answers = [parse_answer(row.response, catalog) for row in rows]
    entries = list(dict.fromkeys(entry for answer in answers for entry in answer.entries))
    matches = dict(zip(entries, Grounder(catalog, *grounding).match(entries), strict=True))
    for number, answer in enumerate(answers, start=1):
        places = [_place(entry, matches[entry], catalog) for entry in answer.entries]
        yield from _lines(number, answer, places)
        lengths[len(places)] += 1
        kinds.update(place["match"] or "none" for place in places)
        reasons.update(dropped.reason for dropped in answer.dropped)
        written.append({"row": number, "items": places, "dropped": [dropped._asdict() for dropped in answer.dropped]})
    if out is not None:
        write_json_lines(out, written)
    total = max(1, kinds.total())
    yield ""
    yield summary
    yield f"{len(rows)} responses, {kinds.total()} items"
    yield "items a response: " + ", ".join(f"{size}: {count}" for size, count in sorted(lengths.items()))
    yield "in the catalog: " + ", ".join(f"{kind} {kinds[kind] / total:.1%}" for kind in (*KINDS, "none"))
    yield "dropped lines: " + (", ".join(f"{reason} {count}" for reason, count in reasons.most_common()) or "none")


def named_items(titles: Sequence[str], catalog: Catalog) -> list[int]:
    """Return the catalog items of seen titles, written as `Title (Year)` or as titles alone, which mean any year."""
    entries = [(title, parse_line(title, catalog)) for title in titles]
    found = {i for title, _ in entries for i in catalog.indices_of_title(title)}
    return sorted(found | {i for _, entry in entries if entry for i in catalog.readings(entry.title, entry.year)})


def write_json_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write JSON lines atomically: all objects, or the file is unchanged."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def remap_responses(
    responses: Path,
    catalog_path: Path,
    out: Path,
    *,
    top: int,
    embedder: str,
    conversation_weight: float,
    grounding: tuple[float, float],
) -> str:
    """Write each row with the top items of Remap, their scores and sources, as `items`; return what was done."""
    check_target(out, "--out")
    rows = read_responses(responses, with_conversation=True)
    catalog, summary = open_catalog(catalog_path)
    texts = [item.text() for item in catalog.items]
    remapped = remap(
        (parse_answer(row.response, catalog).entries for row in rows),
        [row.conversation for row in rows],
        catalog,
        TfidfEmbedder(texts) if embedder == "tfidf" else SentenceEmbedder(embedder),
        Grounder(catalog, *grounding),
        conversation_weight=conversation_weight,
    )
    seen = [named_items(row.seen, catalog) for row in rows]
    best, scores = top_items(remapped.scores, top, seen)
    sources = remapped.sources.of(best)
    written = [
        {
            **json.loads(sendable(json.dumps(row.row, ensure_ascii=False))),
            "items": [
                {
                    "rank": rank,
                    "title": catalog.items[i].title,
                    "year": catalog.items[i].year,
                    "score": round(score, 6),
                    "source": SOURCES[kind],
                }
                for rank, (i, score, kind) in enumerate(zip(items, values, kinds, strict=True), start=1)
                if i >= 0
            ],
        }
        for row, items, values, kinds in zip(rows, best.tolist(), scores.tolist(), sources.tolist(), strict=True)
    ]
    write_json_lines(out, written)
    counts = Counter(item["source"] for row in written for item in row["items"])
    shares = ", ".join(f"{source} {counts[source] / max(1, counts.total()):.1%}" for source in SOURCES)
    return f"{summary}\n{out}: {len(written)} lists; placed by: {shares}"
