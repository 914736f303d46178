"""Makes a sample of the raw Reddit-Movie dump in its real layout: seeded, with invented films and texts."""

import csv
import json
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

COLUMNS = ["conv_id", "turn_id", "turn_order", "user_id", "is_seeker", "utc_time", "upvotes", "raw", "processed"]
COLUMNS += ["context_raw", "context_processed", "context_turn_ids"]
FIRST, LAST = (int(datetime(2022, month, 1, tzinfo=UTC).timestamp()) for month in (9, 12))
FILES = {"2022-11": "validation.csv", "2022-12": "test.csv"}  # all that is earlier is in train.csv
_ADJECTIVES = "Amber Broken Distant Electric Frozen Gentle Hollow Iron Last Midnight Narrow Pale Quiet Red Second Wild"
_NOUNS = "Anchor Bridge Circus Desert Engine Forest Garden Harbour Island Journey Kingdom Lantern Mirror Orchard River"
_TEXT = (
    "something slow and strange with a good ending please no musicals i saw it twice last winter and still think "
    "about the score my sister doesn't agree but the second half is worth it really moody dark funny warm long"
)
_OPENINGS = ["Looking for films like", "I loved", "What should I watch after", "Anything close to", "Caf\u00e9 mood:"]
_ENDINGS = ["", " :)", ' He said "watch it".', "\n\nThanks!", " It's great\u2026 \U0001f3ac", "\u200b", " a\\b"]
_MENTION = re.compile(r"tt[0-9]+")


def film_names(num_films: int, seed: int = 0) -> dict[str, str]:
    """Return `id2name`: invented films by IMDb id; every 50th has no year."""
    draw = random.Random(seed)
    names = {}
    for number in range(num_films):
        title = f"The {draw.choice(_ADJECTIVES.split())} {draw.choice(_NOUNS.split())} {number % 97 + 2}"
        names[f"tt{number * 137 + 50_000:07d}"] = title if number % 50 == 49 else f"{title} ({1930 + number % 90})"
    return names


def turn(thread: str, turn_id: str, when: int, text: str, context: list[dict], names: dict[str, str], **fields) -> dict:
    """Return one record of the dump; `context` are the records from the thread's first turn to its parent."""
    raw = _MENTION.sub(lambda match: names.get(match.group(), match.group()), text)
    role = "USER" if fields["is_seeker"] else "SYSTEM"
    record = {"conv_id": thread, "turn_id": turn_id, "turn_order": len(context), "user_id": "t2_seeker"}
    record |= {"utc_time": when, "upvotes": None, "raw": repr([role, raw]), "processed": repr([role, text])}
    record |= {
        "context_raw": f"[{', '.join(parent['raw'] for parent in context)}]",
        "context_processed": f"[{', '.join(parent['processed'] for parent in context)}]",
        "context_turn_ids": repr([parent["turn_id"] for parent in context]),
    }
    return record | fields


def _text(draw: random.Random, films: list[str], num_films: int, num_words: int) -> str:
    words = draw.choices(_TEXT.split(), k=num_words)
    for film in draw.choices(films, k=num_films):
        words.insert(draw.randrange(len(words)), film + draw.choice(["", ",", ".", "!", "_"]))
    return f"{draw.choice(_OPENINGS)} {' '.join(words)}{draw.choice(_ENDINGS)}"


def sample_turns(num_turns: int, names: dict[str, str], seed: int = 0) -> Iterator[dict]:
    """Yield about `num_turns` records of threads: a seeker's post, replies, sometimes an answer and a second reply."""
    draw = random.Random(seed)
    films = sorted(names)
    made = thread_number = 0
    while made < num_turns:
        thread_number += 1
        thread = f"t3_{thread_number:06x}"
        when = draw.randrange(FIRST, LAST + 30 * 86_400)
        text = _text(draw, films, draw.randrange(4), draw.randrange(20, 80))
        post = turn(thread, thread, when, text, [], names, is_seeker=True)
        records = [post]
        for reply in range(draw.randrange(1, 8)):
            path = [post]
            for depth in range(draw.choice([1, 1, 1, 3])):
                fields: dict = {"is_seeker": depth == 1, "upvotes": draw.choice([-2, 0, 1, 1, 2, 3, 5, 40])}
                fields["user_id"] = "t2_seeker" if depth == 1 else f"t2_{draw.randrange(10_000):05d}"
                text = _text(draw, films, draw.choice([0, 1, 1, 2, 3]), draw.randrange(5, 40))
                when += draw.randrange(60, 7200)
                turn_id = f"t1_{thread_number:06x}{reply}{depth}"
                path.append(turn(thread, turn_id, when, text, list(path), names, **fields))
            records += path[1:]
        made += len(records)
        yield from records


def _file(when: object) -> str:
    """Return the file of a time; one that is none goes to the first."""
    if not isinstance(when, int) or not 0 <= when < 2**32:
        return "train.csv"
    return FILES.get(datetime.fromtimestamp(when, UTC).strftime("%Y-%m"), "train.csv")


def write_dump(folder: Path, records: Iterator[dict] | list[dict], names: dict[str, str], copies: float = 0.02) -> None:
    """Write `id2name.json` and the CSVs of the splits; a share of the records stands in two files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "id2name.json").write_text(json.dumps(names), encoding="utf-8")
    draw = random.Random(len(names))
    streams = {name: (folder / name).open("w", encoding="utf-8", newline="") for name in ("train.csv", *FILES.values())}
    writers = {name: csv.DictWriter(stream, COLUMNS, lineterminator="\n") for name, stream in streams.items()}
    for writer in writers.values():
        writer.writeheader()
    for record in records:
        writers[_file(record["utc_time"])].writerow(record)
        if draw.random() < copies:
            writers["train.csv"].writerow(record)
    for stream in streams.values():
        stream.close()


def write_sample(folder: Path, num_turns: int = 1_000, num_films: int = 200, seed: int = 0) -> None:
    """Write a whole sample of the dump: about `num_turns` records beside some copies."""
    names = film_names(num_films, seed)
    write_dump(folder, sample_turns(num_turns, names, seed), names)
