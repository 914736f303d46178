"""The raw Reddit-Movie reader against plain loops on hostile cells, and on damaged files."""

import ast
import csv
import json
import math
import random
import re
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.data.quarantine import Quarantine
from convrec.data.sources.reddit_movie import read_reddit_movie
from convrec.project.errors import InputError
from tests.data.sources.reddit_movie_sample import COLUMNS as CELLS
from tests.data.sources.reddit_movie_sample import write_dump
from tests.data.sources.test_reddit_movie import (
    ALIEN,
    ALIEN_AGAIN,
    HEAT,
    LATE,
    LOST,
    NAMES,
    NOVEMBER,
    OF_THE_CATALOG,
    UNKNOWN,
    UP,
    small_thread,
)

PIECES = ["a ", "it's", '"', "\\", "\n", ",", "é", "\u200b", "\U0001f3ac", "tt", "[", "']", "\\n", "\u0301", "\u202e"]
TURN_IDS = [f"t{number}" for number in range(1, 10)]
FILM_IDS = [HEAT, UP, ALIEN, ALIEN_AGAIN, LOST, LATE, UNKNOWN]
BAD_CELLS = {
    "conv_id": [""],
    "turn_id": ["", "\0"],
    "is_seeker": ["", "1", "\0", "FALSE", "true"],
    "utc_time": ["", "-1", "nan", "1e400", "2022-11-01", "9" * 30, "0"],
    "upvotes": ["", "inf", "many"],
    "processed": ["", "['USER', '\\ud800']", "x\0", "['USER', '']", "['USER', 'a", "['USER'", "['"],
    "context_turn_ids": ["[]", "", "[", "['t0',]", "[t0]", "None", "{}", "['t0', 't9']", "['t0', 't0']", "['t5']"],
}


def _hostile_records(seed: int) -> list[dict]:
    """Threads below t0 in which some cells are hostile: drawn evenly, since small examples hold no rows at all."""
    draw = random.Random(seed)
    records = []
    for turn_id in ["t0", *draw.choices(["t0", *TURN_IDS * 3], k=draw.randrange(2, 13))]:
        text = "".join(draw.choices(PIECES + FILM_IDS * 2, k=draw.randrange(1, 9)))
        record = {
            "conv_id": draw.choice("cd"),
            "turn_id": turn_id,
            "is_seeker": "True" if turn_id == "t0" else draw.choice(["False", "False", "True"]),
            "utc_time": draw.choice([str(NOVEMBER), f"{NOVEMBER}.0"]),
            "upvotes": draw.choice(["1", "2.0", "0", "-3", "1e3"]),
            "processed": draw.choice([text, repr(["USER", text]), repr(["SYSTEM", text])]),
            "context_turn_ids": draw.choice(["['t0']"] * 4 + ["['t0', \"t1\"]", "['t0', 't1', 't2']"]),
        }
        bad = {name: draw.choice(cells) for name, cells in BAD_CELLS.items() if draw.random() < 0.03}
        records.append(record | bad)
    return records


def _usable_text(cell: str) -> str | None:
    if not re.match(r"\s*\[\s*['\"]", cell):
        return cell.strip()
    try:
        role, text = ast.literal_eval(cell.strip())
        text.encode()
    except (SyntaxError, ValueError, AttributeError):
        return None
    return text.strip()


def _number(cell: str) -> float | None:
    try:
        return float(cell) if math.isfinite(float(cell)) else None
    except ValueError:
        return None


def _turns_by_loop(records: list[dict], quarantine: Counter) -> dict[str, dict]:
    copies: dict[str, list[tuple]] = {}
    for record in records:
        if not any(record.values()):
            continue
        text, context = _usable_text(record["processed"]), record["context_turn_ids"]
        reason = None
        if any("\0" in cell for cell in record.values()):
            reason = "NUL bytes"
        elif not record["turn_id"]:
            reason = "no turn_id"
        elif record["is_seeker"].lower() not in ("true", "false"):
            reason = "is_seeker is neither True nor False"
        elif text is None:
            reason = "broken literal in processed"
        elif not record["processed"] and not context:
            reason = "neither text nor context"
        elif context and not re.fullmatch(r"""\[(['"]t\d['"](, ['"]t\d['"])*,?)?\]""", context):
            reason = "broken literal in context_turn_ids"
        if reason:
            quarantine["turns", reason] += 1
            continue
        numbers = [_number(record["utc_time"]), _number(record["upvotes"])]
        if numbers[0] is not None and not 1.1e9 < numbers[0] < 4.1e9:
            numbers[0] = None
        ordered = [(number is not None, number or 0) for number in numbers]
        cells = (text, record["is_seeker"].lower() == "true", *ordered, context)
        copies.setdefault(record["turn_id"], []).append((cells, record["conv_id"]))
    turns = {}
    for turn_id, found in copies.items():
        cells, conversation = min(found)
        quarantine["turns", "differs from another row of its turn_id"] += sum(cells != other for other, _ in found)
        text, is_seeker, when, upvotes, context = cells
        path = re.findall(r"t\d", context)
        turns[turn_id] = {"text": text, "seeker": is_seeker, "when": when, "upvotes": upvotes, "path": path}
        turns[turn_id]["conversation"] = conversation
    return turns


FILMS = {HEAT: ("Heat", 1995), UP: ("Up", 2009), ALIEN: ("Alien", 1979), ALIEN_AGAIN: ("Alien", 1979)}
FILMS |= {LOST: ("Lost", None), LATE: ("Late", None)}
SPELT = {HEAT: "Heat (1995)", UP: "Up (2009)", ALIEN: "Alien (1979)", ALIEN_AGAIN: "Alien (1979)", LOST: "Lost"}
SPELT[LATE] = "Late (3000)"


def _films(text: str) -> list[tuple]:
    """The films that a text names, in order; one without a name is its id."""
    ids = re.findall("tt[0-9]+", text)
    return list(dict.fromkeys(FILMS.get(movie, (None, movie)) for movie in ids))


def _problem_by_loop(turn_id: str, answer: dict, turns: dict[str, dict]) -> str | None:
    path = answer["path"]
    if not answer["upvotes"][0]:
        return "upvotes is no number"
    if not answer["when"][0]:
        return "utc_time is no time from 2005 to 2099"
    if not answer["conversation"]:
        return "no conv_id"
    if not path:
        return "no context"
    if turn_id in path:
        return "a turn twice in its path"
    if any(parent not in turns for parent in path):
        return "a turn of its context is missing"
    if len(set(path)) < len(path):
        return "a turn twice in its path"
    if not any(turns[parent]["seeker"] and turns[parent]["text"] for parent in path):
        return "no words of the seeker in its context"
    return None


def _rows_by_loop(records: list[dict], min_upvotes: int, quarantine: Counter) -> list[dict]:
    """The oracle: the same job, one turn after the other."""
    turns = _turns_by_loop(records, quarantine)
    rows, used = [], set()
    for turn_id, answer in sorted(turns.items()):
        films, upvotes = _films(answer["text"]), answer["upvotes"]
        if answer["seeker"] or not films or (upvotes[0] and upvotes[1] < min_upvotes):
            continue
        problem = _problem_by_loop(turn_id, answer, turns)
        if problem:
            quarantine["conversations", problem] += 1
            continue
        named = list(dict.fromkeys(film for parent in answer["path"] for film in _films(turns[parent]["text"])))
        fresh = [film for film in films if film not in named]
        quarantine["groundtruth", "no name in id2name.json"] += sum(title is None for title, _ in fresh)
        quarantine["groundtruth", "not in the catalog"] += sum(title == "Late" for title, _ in fresh)
        truths = [{"title": title, "year": year} for title, year in fresh if title not in (None, "Late")]
        if not truths:
            continue
        messages: list[dict] = []
        for parent in answer["path"]:
            used.add(parent)
            text = re.sub("tt[0-9]+", lambda match: SPELT.get(match.group(), match.group()), turns[parent]["text"])
            role = "user" if turns[parent]["seeker"] else "assistant"
            if text and messages and messages[-1]["role"] == role:
                messages[-1]["content"] += f"\n{text}"
            elif text:
                messages.append({"role": role, "content": text})
        seen = [title for title, _ in named if title is not None]
        rows.append(
            {
                "conversation_id": answer["conversation"],
                "user_id": "x",
                "date": "2022-11-01",
                "messages": messages,
                "groundtruth": truths,
                "seen_titles": seen,
                "disliked_titles": [],
            }
        )
    for parent in used:
        unknown = [movie for title, movie in _films(turns[parent]["text"]) if title is None]
        quarantine["seen_titles", "no name in id2name.json"] += len(unknown)
    return rows


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), files=st.integers(1, 3), min_upvotes=st.integers(-1, 2))
def test_hostile_cells_give_what_plain_loops_give(tmp_path_factory, seed, files, min_upvotes):
    records = _hostile_records(seed)
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "id2name.json").write_text(json.dumps(NAMES), encoding="utf-8")
    for number in range(files):
        with (folder / f"{number}.csv").open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, CELLS, restval="x", lineterminator=["\n", "\r\n"][number % 2])
            writer.writeheader()
            writer.writerows(records[number::files])
    counts = Counter(OF_THE_CATALOG)
    expected = _rows_by_loop(records, min_upvotes, counts)
    quarantine = Quarantine()
    try:
        rows = read_reddit_movie(folder, quarantine, min_upvotes=min_upvotes).rows
    except InputError:
        assert not expected
    else:
        assert rows.drop(columns="prompt_id").to_dict("records") == expected
        keys = [(key, json.dumps(messages)) for key, messages in zip(rows["prompt_id"], rows["messages"], strict=True)]
        assert len(set(keys)) == rows["prompt_id"].nunique() == len({messages for _, messages in keys})
    assert Counter((row["source"], row["reason"]) for row in quarantine.rows) == +counts


DAMAGE = [b"", b'"', b"\0", b"\xff", b"\r", b"\n", b",", b"'", b"\\", b"[]", b"0", b"tt"]


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_damaged_files_give_an_error_or_rows(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("damaged")
    write_dump(folder, small_thread(), NAMES)
    draw = random.Random(seed)
    path = folder / draw.choice(["train.csv", "validation.csv", "id2name.json"])
    content = bytearray(path.read_bytes())
    for _ in range(draw.randrange(1, 5)):
        start = draw.randrange(len(content) + 1)
        end = start + draw.choice([0, 0, 1, 1, 1, 1, 5, 5, len(content)])
        content[start:end] = draw.choice(DAMAGE)
    path.write_bytes(bytes(content))
    quarantine = Quarantine()
    try:
        catalog, rows, *_ = read_reddit_movie(folder, quarantine, min_upvotes=1)
    except InputError as error:
        assert str(folder) in str(error)
        return
    assert 0 < len(rows) <= 7 and rows.notna().all(axis=None)
    for row in rows.to_dict("records"):
        assert row["messages"] and row["groundtruth"]
        assert all(catalog.find(truth["title"], truth["year"], tolerance=0) is not None for truth in row["groundtruth"])
