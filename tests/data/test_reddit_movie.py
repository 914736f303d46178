import ast
import csv
import json
import math
import random
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.data.catalog import Catalog, LeftOut
from convrec.data.conversations import COLUMNS, read_rows, split_by_month, write_rows
from convrec.data.reddit_movie import read_reddit_movie
from convrec.errors import InputError
from tests.data.reddit_movie_sample import COLUMNS as CELLS
from tests.data.reddit_movie_sample import film_names, sample_turns, turn, write_dump, write_sample

HEAT, UP, ALIEN, ALIEN_AGAIN, LOST, LATE = "tt0113277", "tt1049413", "tt0078748", "tt00787481", "tt0000009", "tt9999999"
UNKNOWN = "tt1234567"
NAMES = {
    LATE: "Late (3000)",
    HEAT: "Heat (1995)",
    UP: "Up \n (2009)",
    ALIEN: "Alien (1979)",
    ALIEN_AGAIN: "ALIEN  (1979)",
    LOST: "Lost",
}
NOVEMBER = int(datetime(2022, 11, 1, tzinfo=UTC).timestamp())


def _thread() -> list[dict]:
    """A post; two replies to it; to the first an answer, a second recommender's turn, a third's."""
    seeker, helper = {"is_seeker": True}, {"is_seeker": False, "upvotes": 1}
    post = turn("c", "t3_a", NOVEMBER - 10, f'I loved {HEAT}, it\'s a "classic".\nMore?', [], NAMES, **seeker)
    first = turn("c", "t1_b", NOVEMBER - 1, f"Try {UP}_ or {HEAT}, {UP}", [post], NAMES, **helper | {"upvotes": 5})
    other = turn("c", "t1_e", NOVEMBER, f"{ALIEN}!", [post], NAMES, **helper | {"upvotes": 0})
    answer = turn("c", "t1_c", NOVEMBER + 1, f"Seen. And {LOST}?", [post, first], NAMES, **seeker)
    second = turn("c", "t1_d", NOVEMBER + 2, "No idea", [post, first, answer], NAMES, **helper)
    third = turn("c", "t1_f", NOVEMBER + 3, f"{ALIEN_AGAIN} {UP}", [post, first, answer, second], NAMES, **helper)
    last = turn("c", "t1_g", NOVEMBER + 4, f"So {UP}", [post, first, answer, second, third], NAMES, **helper)
    return [post, first, other, answer, second, third, last]


def _read(folder: Path, records: list[dict], min_upvotes: int = 1) -> tuple[Catalog, list[dict], Counter]:
    write_dump(folder, records, NAMES, copies=0)
    left_out = LeftOut()
    catalog, rows = read_reddit_movie(folder, min_upvotes, left_out)
    return catalog, rows.to_dict("records"), Counter((row["source"], row["reason"]) for row in left_out.rows)


OF_THE_CATALOG = Counter(
    {("catalog", "no year"): 1, ("catalog", "year out of range"): 1, ("catalog", "duplicate item"): 1}
)


def test_each_turn_that_names_new_films_is_a_row(tmp_path):
    catalog, rows, left_out = _read(tmp_path, _thread())
    assert [str(item) for item in catalog.items] == ["Alien (1979)", "Heat (1995)", "Up (2009)"], "in the ids' order"
    assert left_out == OF_THE_CATALOG
    first, third = rows
    post = {"role": "user", "content": 'I loved Heat (1995), it\'s a "classic".\nMore?'}
    assert first["messages"] == [post]
    assert first["groundtruth"] == [{"title": "Up", "year": 2009}], "once, and without what the context names"
    assert first["seen_titles"] == ["Heat"]
    assert (first["date"], first["conversation_id"]) == ("2022-10-31", "c")
    assert third["messages"] == [
        post,
        {"role": "assistant", "content": "Try Up (2009)_ or Heat (1995), Up (2009)"},
        {"role": "user", "content": "Seen. And Lost?"},
        {"role": "assistant", "content": "No idea"},
    ]
    assert third["groundtruth"] == [{"title": "Alien", "year": 1979}], "the item of the catalog, whichever id names it"
    assert third["seen_titles"] == ["Heat", "Up", "Lost"]
    assert third["date"] == "2022-11-01"


def test_answers_to_one_turn_share_the_prompt(tmp_path):
    _, rows, _ = _read(tmp_path, _thread(), min_upvotes=0)
    assert [row["groundtruth"][0]["title"] for row in rows] == ["Up", "Alien", "Alien"]
    assert rows[0]["prompt_id"] == rows[1]["prompt_id"] != rows[2]["prompt_id"]
    assert rows[1]["messages"] == rows[0]["messages"]


@pytest.mark.parametrize(("min_upvotes", "number"), [(-1, 3), (0, 3), (1, 2), (5, 1)])
def test_the_threshold_counts_itself(tmp_path, min_upvotes, number):
    assert len(_read(tmp_path, _thread(), min_upvotes)[1]) == number


def test_months_are_those_of_utc(tmp_path):
    seconds = [NOVEMBER - 1, NOVEMBER, NOVEMBER + 30 * 86_400 - 1, NOVEMBER + 30 * 86_400]
    records = _thread()[:1]
    for number, when in enumerate(seconds):
        records.append(turn("c", f"t1_{number}", when, UP, records[:1], NAMES, is_seeker=False, upvotes=1))
    write_dump(tmp_path, records, NAMES)
    _, rows = read_reddit_movie(tmp_path, 1, LeftOut())
    assert rows["date"].tolist() == ["2022-10-31", "2022-11-01", "2022-11-30", "2022-12-01"]
    splits = split_by_month(rows[list(COLUMNS)], "2022-11", "2022-12")
    assert {name: len(split) for name, split in splits.items()} == {"train": 1, "validation": 2, "test": 1}
    write_rows(splits["validation"], tmp_path / "rows.parquet")
    assert read_rows(tmp_path / "rows.parquet") == rows[list(COLUMNS)].iloc[1:3].to_dict("records")


def test_plain_texts_are_read_as_well(tmp_path):
    records = _thread()
    for record in records:
        record["processed"] = ast.literal_eval(record["processed"])[1]
    assert _read(tmp_path / "plain", records)[1] == _read(tmp_path / "literal", _thread())[1]


def test_the_order_of_files_and_rows_does_not_matter(tmp_path):
    names = film_names(100)
    records = list(sample_turns(300, names))
    frames = []
    for seed in range(3):
        folder = tmp_path / str(seed)
        write_dump(folder, records, names, copies=0.1 * seed)
        if seed == 2:
            (folder / "train.csv").rename(folder / "zz.csv")
        (folder / "id2name.json").write_text(json.dumps(dict(sorted(names.items(), reverse=seed == 1))))
        random.Random(seed).shuffle(records)
        catalog, rows = read_reddit_movie(folder, 1, LeftOut())
        write_rows(rows, folder / "rows.parquet")
        frames.append(((folder / "rows.parquet").read_bytes(), catalog.items))
    assert frames[0] == frames[1] == frames[2]


def test_a_turn_counts_once_and_deviating_copies_are_counted(tmp_path):
    thread = _thread()
    other_conversation = thread[1] | {"conv_id": "b"}
    edited = thread[1] | {"processed": f"zz {ALIEN}", "utc_time": NOVEMBER + 86_400 * 30}
    _, rows, left_out = _read(tmp_path, [*thread, *thread, other_conversation, edited])
    assert [row["conversation_id"] for row in rows] == ["b", "c"], "the first of the conversations that hold the turn"
    assert rows[0]["groundtruth"] == [{"title": "Up", "year": 2009}]
    assert left_out - OF_THE_CATALOG == {("turns", "differs from another row of its turn_id"): 1}


@pytest.mark.parametrize(
    ("number", "change", "reason"),
    [
        (1, {"utc_time": ""}, ("conversations", "utc_time is no time from 2005 to 2099")),
        (1, {"utc_time": -5}, ("conversations", "utc_time is no time from 2005 to 2099")),
        (1, {"utc_time": NOVEMBER * 1000}, ("conversations", "utc_time is no time from 2005 to 2099")),
        (1, {"utc_time": "soon"}, ("conversations", "utc_time is no time from 2005 to 2099")),
        (1, {"upvotes": ""}, ("conversations", "upvotes is no number")),
        (1, {"upvotes": "nan"}, ("conversations", "upvotes is no number")),
        (1, {"conv_id": ""}, ("conversations", "no conv_id")),
        (1, {"context_turn_ids": "[]"}, ("conversations", "no context")),
        (1, {"context_turn_ids": "['t3_a', 't1_z']"}, ("conversations", "a turn of its context is missing")),
        (1, {"context_turn_ids": "['t3_a', 't3_a']"}, ("conversations", "a turn twice in its path")),
        (1, {"context_turn_ids": "['t3_a', 't1_b']"}, ("conversations", "a turn twice in its path")),
        (1, {"context_turn_ids": "['t1_d']"}, ("conversations", "no words of the seeker in its context")),
        (1, {"context_turn_ids": "['t3_a'"}, ("turns", "broken literal in context_turn_ids")),
        (1, {"processed": "['SYSTEM', 'tt1049413"}, ("turns", "broken literal in processed")),
        (1, {"processed": f"{UP}\0"}, ("turns", "NUL bytes")),
        (1, {"is_seeker": "maybe"}, ("turns", "is_seeker is neither True nor False")),
        (1, {"turn_id": ""}, ("turns", "no turn_id")),
        (1, {"processed": UNKNOWN}, ("groundtruth", "no name in id2name.json")),
        (1, {"processed": LATE}, ("groundtruth", "not in the catalog")),
        (3, {"processed": f"Also {UNKNOWN}"}, ("seen_titles", "no name in id2name.json")),
    ],
)
def test_what_cannot_be_used_is_counted(tmp_path, number, change, reason):
    thread = _thread()[: number + 1] if number == 1 else _thread()
    extra = turn("d", "t1_y", NOVEMBER, ALIEN, thread[:1], NAMES, is_seeker=False, upvotes=9)
    lone = turn("e", "t1_d", NOVEMBER, "No idea", [], NAMES, is_seeker=False, upvotes=9)
    records = [*thread, extra] + ([lone] if number == 1 else [])
    whole = len(_read(tmp_path / "whole", records)[1])
    records[number] = records[number] | change
    _, rows, left_out = _read(tmp_path / "changed", records)
    assert left_out - OF_THE_CATALOG == {reason: 1}
    assert len(rows) == whole - (number == 1)


def test_numbers_as_pandas_writes_them_beside_gaps(tmp_path):
    thread = _thread()
    changed = [{**record, "utc_time": f"{record['utc_time']}.0"} for record in thread]
    changed[1]["upvotes"] = "5.0"
    assert _read(tmp_path / "a", changed)[1] == _read(tmp_path / "b", thread)[1]


def test_an_empty_text_adds_no_message(tmp_path):
    thread = _thread()
    thread[4]["processed"] = "['SYSTEM', '']"
    _, rows, left_out = _read(tmp_path, thread)
    assert [message["role"] for message in rows[1]["messages"]] == ["user", "assistant", "user"]
    assert left_out == OF_THE_CATALOG


def _append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def _drop_column(path: Path) -> None:
    pd.read_csv(path).drop(columns="is_seeker").to_csv(path, index=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: [p.unlink() for p in f.glob("*.csv")], r"no \*.csv there"),
        (lambda f: (f / "id2name.json").unlink(), "id2name.json: no such file"),
        (lambda f: (f / "id2name.json").write_text('{"tt1": "He'), "not readable JSON"),
        (lambda f: (f / "id2name.json").write_text("[" * 100_000), "not readable JSON"),
        (lambda f: (f / "id2name.json").write_text('["Heat (1995)"]'), "one JSON object of IMDb ids"),
        (lambda f: (f / "id2name.json").write_text("{}"), "none of its 0 rows can be used"),
        (lambda f: (f / "id2name.json").write_bytes(b'{"tt1": "\xe9"}'), "byte 9 is not UTF-8"),
        (lambda f: _drop_column(f / "train.csv"), "train.csv: row 1: column 'is_seeker' is missing"),
        (lambda f: (f / "train.csv").write_bytes(b""), "train.csv: the file is empty"),
        (lambda f: _append(f / "train.csv", b"c,t1_h,1,u,True,1,1,caf\xe9,x,[],[],[]\n"), "train.csv: not UTF-8"),
        (lambda f: (f / "train.csv").write_bytes((f / "train.csv").read_bytes().decode().encode("utf-16")), "csv: "),
        (lambda f: _append(f / "train.csv", b'c,t1_h,1,u,True,1,1,"open,x,[],[],[]\n'), "close every quote"),
        (lambda f: (f / "train.csv").write_bytes((f / "train.csv").read_bytes().replace(b"raw", b"conv_id", 1)), "twi"),
    ],
)
def test_unreadable_files(tmp_path, change, message):
    write_dump(tmp_path, _thread(), NAMES)
    change(tmp_path)
    with pytest.raises(InputError, match=message):
        read_reddit_movie(tmp_path, 1, LeftOut())


def test_no_folder_and_no_row(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        read_reddit_movie(tmp_path / "none", 1, LeftOut())
    write_dump(tmp_path, _thread(), NAMES)
    with pytest.raises(InputError, match="at least 6 upvotes"):
        read_reddit_movie(tmp_path, 6, LeftOut())


def test_ragged_rows_other_line_ends_and_blank_lines(tmp_path):
    _, rows, _ = _read(tmp_path, _thread())
    train, test = tmp_path / "train.csv", tmp_path / "validation.csv"
    train.write_bytes(b"\xef\xbb\xbf" + train.read_bytes().replace(b"\n", b"\r\n") + b"\nc,t1_h,1,u,True\n\n")
    _append(test, b"c,t1_i,1,u,True,1,1,x,x,[],[],[],more\n")
    left_out = LeftOut()
    assert read_reddit_movie(tmp_path, 1, left_out)[1].to_dict("records") == rows
    reasons = [(row["row"], row["reason"]) for row in left_out.rows if row["source"] == "turns"]
    assert reasons == [
        ("train.csv:5", "neither text nor context"),
        ("validation.csv:7", "more fields than the header names"),
    ]


def test_names_that_cannot_be_used(tmp_path):
    write_dump(tmp_path, _thread(), NAMES)
    names = json.dumps(NAMES)[1:-1]
    bad = '"tt5": null, "tt6": "\\ud800 (1999)", "tt7": "A\\u0000 (1999)", "nm1": "B (1999)", "tt8": "Year 0 (0000)"'
    (tmp_path / "id2name.json").write_text(f'{{{names}, {bad}, "{UP}": "Again (1999)"}}')
    left_out = LeftOut()
    catalog, _ = read_reddit_movie(tmp_path, 1, left_out)
    assert len(catalog) == 3
    reasons = {row["row"]: row["reason"] for row in left_out.rows}
    assert reasons["tt5"] == "no title" and reasons["nm1"] == "no IMDb id" and reasons[UP] == "the same id again"
    assert reasons["tt6"] == reasons["tt7"] == "NUL or half a character"
    assert reasons["tt8"] == "year out of range"
    left_out.write(tmp_path / "left_out.csv")


PIECES = [
    "a ",
    "it's",
    '"',
    "\\",
    "\n",
    ",",
    "é",
    "\u200b",
    "\U0001f3ac",
    "tt",
    "[",
    "']",
    "\\n",
    "\u0301",
    "\u202e",
    "|",
]
TURN_IDS = [f"t{number}" for number in range(1, 10)]
FILM_IDS = [HEAT, UP, ALIEN, ALIEN_AGAIN, LOST, LATE, UNKNOWN]
BAD_CELLS = {
    "conv_id": [""],
    "turn_id": ["", "\0"],
    "is_seeker": ["", "1", "\0", "FALSE", "true"],
    "utc_time": ["", "-1", "nan", "1e400", "2022-11-01", "9" * 30, "0"],
    "upvotes": ["", "inf", "many"],
    "processed": ["", "['USER', '\\ud800']", "x\0", "['USER', '']", "['USER', 'a", "['USER'", "['"],
    "context_turn_ids": [
        "[]",
        "",
        "[",
        "['t0',]",
        "[t0]",
        "[1]",
        "None",
        "{}",
        "['t0', 't9']",
        "['t0', 't0']",
        "['t5']",
    ],
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


def _turns_by_loop(records: list[dict], left_out: Counter) -> dict[str, dict]:
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
            left_out["turns", reason] += 1
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
        left_out["turns", "differs from another row of its turn_id"] += sum(cells != other for other, _ in found)
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


def _rows_by_loop(records: list[dict], min_upvotes: int, left_out: Counter) -> list[dict]:
    """The oracle: the same job, one turn after the other."""
    turns = _turns_by_loop(records, left_out)
    rows, used = [], set()
    for turn_id, answer in sorted(turns.items()):
        films, upvotes = _films(answer["text"]), answer["upvotes"]
        if answer["seeker"] or not films or (upvotes[0] and upvotes[1] < min_upvotes):
            continue
        problem = _problem_by_loop(turn_id, answer, turns)
        if problem:
            left_out["conversations", problem] += 1
            continue
        named = list(dict.fromkeys(film for parent in answer["path"] for film in _films(turns[parent]["text"])))
        fresh = [film for film in films if film not in named]
        left_out["groundtruth", "no name in id2name.json"] += sum(title is None for title, _ in fresh)
        left_out["groundtruth", "not in the catalog"] += sum(year is None for _, year in fresh)
        truths = [{"title": title, "year": year} for title, year in fresh if title is not None and year is not None]
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
                "date": "2022-11-01",
                "messages": messages,
                "groundtruth": truths,
                "seen_titles": seen,
            }
        )
    for parent in used:
        unknown = [movie for title, movie in _films(turns[parent]["text"]) if title is None]
        left_out["seen_titles", "no name in id2name.json"] += len(unknown)
    return rows


@settings(max_examples=300, deadline=None)
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
    left_out = LeftOut()
    try:
        _, rows = read_reddit_movie(folder, min_upvotes, left_out)
    except InputError:
        assert not expected
    else:
        assert rows.drop(columns="prompt_id").to_dict("records") == expected
        keys = [(key, json.dumps(messages)) for key, messages in zip(rows["prompt_id"], rows["messages"], strict=True)]
        assert len(set(keys)) == rows["prompt_id"].nunique() == len({messages for _, messages in keys})
    assert Counter((row["source"], row["reason"]) for row in left_out.rows) == +counts


DAMAGE = [b"", b'"', b"\0", b"\xff", b"\r", b"\n", b",", b"'", b"\\", b"[]", b"0", b"tt"]


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_damaged_files_give_an_error_or_rows(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("damaged")
    write_dump(folder, _thread(), NAMES)
    draw = random.Random(seed)
    path = folder / draw.choice(["train.csv", "validation.csv", "id2name.json"])
    content = bytearray(path.read_bytes())
    for _ in range(draw.randrange(1, 5)):
        start = draw.randrange(len(content) + 1)
        end = start + draw.choice([0, 0, 1, 1, 1, 1, 5, 5, len(content)])
        content[start:end] = draw.choice(DAMAGE)
    path.write_bytes(bytes(content))
    left_out = LeftOut()
    try:
        catalog, rows = read_reddit_movie(folder, 1, left_out)
    except InputError as error:
        assert str(folder) in str(error)
        return
    assert 0 < len(rows) <= 7 and rows.notna().all(axis=None)
    for row in rows.to_dict("records"):
        assert row["messages"] and row["groundtruth"]
        assert all(catalog.find(truth["title"], truth["year"], tolerance=0) is not None for truth in row["groundtruth"])


def test_a_whole_sample(tmp_path):
    write_sample(tmp_path)
    left_out = LeftOut()
    catalog, rows = read_reddit_movie(tmp_path, 1, left_out)
    assert len(rows) > 300 and len(catalog) > 150
    assert {row["source"] for row in left_out.rows} == {"catalog", "groundtruth"}, "films without a year"
    assert rows["date"].is_monotonic_increasing and set(rows["date"].str.slice(0, 7)) >= {"2022-09", "2022-12"}
    assert not any(re.search("tt[0-9]", message["content"]) for messages in rows["messages"] for message in messages)
