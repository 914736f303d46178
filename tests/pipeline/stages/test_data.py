"""Sources of data read by the real command, and run on to demonstrations."""

import contextlib
import json
import random
import re
from contextlib import closing
from datetime import UTC, datetime

import pandas as pd
import pytest

from convrec.cli import main
from convrec.data.catalog import Catalog
from convrec.data.conversations import SPLITS
from convrec.data.quarantine import Quarantine
from convrec.data.rows import BAD_DATE
from convrec.pipeline.stages.data import prepare
from convrec.project.config.params import load_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.service.feedback import Answer, Event, FeedbackStore, Shown
from convrec.service.feedback.store import export
from tests.small_project import make_stages, set_params

pytestmark = pytest.mark.slow

BY_SHARE = {"validation_period": None, "test_period": None, "held_out_share": 0.2}
THEMES = ["trains", "pirates", "farms", "castles", "spies", "gardens", "dragons", "markets", "islands", "planets"]


@pytest.fixture
def make(tmp_path, make_store):
    """Writes a project with these parameters of its data, beside an empty store."""

    def project(**data):
        make_stages(tmp_path, {"data": data})
        make_store(tmp_path)
        return tmp_path

    return project


def _run(project, *stages):
    """Run stages; return the metrics of the last, the quarantine, and the catalog."""
    with contextlib.chdir(project):
        for stage in stages:
            main(["run", stage])  # in this process, which has imported already what takes seconds
    processed, metrics = project / "data" / "processed", project / "results"
    quarantine = pd.read_parquet(processed / "quarantine.parquet")
    assert json.loads((metrics / "data.json").read_text())["quarantined"] == len(quarantine)
    catalog = Catalog.read(processed / "catalog.parquet")
    return json.loads((metrics / f"{stages[-1]}.json").read_text()), quarantine, catalog


def _reasons(quarantine):
    return sorted(zip(quarantine["source"], quarantine["row"], quarantine["reason"], strict=True))


def _words(draw):
    return " ".join(draw.choice(THEMES) for _ in range(12))


def _games(number=60):
    """Games without a year whose titles trip over list markers, quotes, years and other alphabets."""
    odd = ["7 Wonders", "Catan: Seafarers", "1. FC", "Uno!", 'Say "Go", twice', "A | B", "שח"]
    odd += ["Cafe\u0301", "No. 5", "1830"]
    titles = odd + [f"The {THEMES[n % 10].title()} of {THEMES[n // 10 % 10].title()}" for n in range(number)]
    return [{"title": title, "themes": [THEMES[n % 10], THEMES[n // 10 % 10]]} for n, title in enumerate(titles)]


def _write(folder, items, rows):
    """Write the files of a source: NAME/NAME.jsonl with the items, and the conversations."""
    folder.mkdir()
    for name, lines in ((folder.name, items), ("conversations", rows)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _game_rows(games, number=150):
    """Conversations of 2024 about games: truths and seen titles in every form, and three rows that cannot be used."""
    draw = random.Random(11)
    rows = []
    for n in range(number):
        wanted, other, seen = draw.sample(games, 3)
        rows.append(
            {
                "conversation_id": n,
                "date": f"2024-{n % 6 + 1:02d}-15T23:30:00-05:00",
                "messages": [
                    {"role": "user", "content": f"We like {seen['title']} and {' or '.join(wanted['themes'])}."},
                    {"role": "assistant", "content": ""},
                    {"role": "user", "content": f"{_words(draw)}\nso what shall we play?"},
                ],
                "groundtruth": [
                    {"title": wanted["title"], "year": None},
                    {"title": other["title"].upper(), "year": None},
                ],
                "seen_titles": [seen["title"]],
            }
        )
    rows[3]["messages"] = rows[3]["messages"][1:2]
    rows[4]["date"] = "3000-01-01"
    rows[5]["groundtruth"] = [{"title": "\0", "year": None}]
    return rows


def test_ground_truth_outside_the_catalog_is_a_warning(tmp_path, make, caplog):
    games = _games()
    _write(tmp_path / "games", games[: len(games) // 2], _game_rows(games))
    project = make(source="files", path="games", catalog="games.jsonl", **BY_SHARE)
    world = Paths(project).world
    world.parent.mkdir(parents=True, exist_ok=True)
    world.write_text("of the embedded world")
    metrics, _, _ = _run(project, "data")
    assert not world.exists(), "the oracle of an earlier source is removed"
    share = metrics["statistics"]["outside_catalog"]["test"]
    assert 0.3 < share < 0.7
    assert f"{100 * share:.1f} % of the test split's ground truth is not in the catalog" in caplog.text
    assert re.search(r"Commonest: '(.+)' \(\d+ times; nearest item: '(.+)'\), ", caplog.text)


def test_recorded_feedback_beside_the_embedded_world(tmp_path, make):
    """Its rows follow, the others stay as they are; the simulated teacher guesses for users that it does not know."""
    project = make(synthetic={"num_conversations": 240})
    alone, splits, _ = prepare(load_params(project / "params.yaml"), Quarantine())
    catalog = alone.catalog
    answers, events = [], []
    for number in range(40):
        time = datetime(2022, 1 + number % 12, 3, tzinfo=UTC)
        shown = tuple(Shown("", rank, catalog.items[(3 * number + rank) % 480].id, "1") for rank in (1, 2, 3))
        said = [{"role": "user", "content": f"Something like {catalog.items[number].title}, please: {number}"}]
        answer = Answer(f"a{number}", time, f"u{number}", None, None, 0.1, said, shown)
        answers.append(answer)
        events.append(Event(f"e{number}", answer.answer_id, "", shown[1].item_id, "accepted", time))
    with closing(FeedbackStore(f"sqlite:///{tmp_path}/feedback.db")) as store:
        store.write(answers, events)
        export(store, project / "data/raw/feedback/feedback.parquet")
    set_params(project, {"data": {"source": ["synthetic", "feedback"]}, "demonstrations": {"adjust": {"epochs": 1}}})
    _run(project, "data", "evidence", "demonstrations")
    for name in SPLITS:
        rows = pd.read_parquet(Paths(project).split(name))
        is_recorded = rows["conversation_id"].str.startswith("feedback/")
        assert rows[~is_recorded]["prompt_id"].to_list() == splits[name]["prompt_id"].to_list()
        assert is_recorded.sum() > 0


def test_ground_truth_that_is_all_outside_the_catalog_is_an_error(tmp_path, make, cli, monkeypatch):
    games = _games()
    named = [{**game, "title": f"{game['title']}: the game"} for game in games]
    _write(tmp_path / "games", named, _game_rows(games))
    monkeypatch.chdir(make(source="files", path="games", catalog="games.jsonl", **BY_SHARE))
    status, _, error = cli("run", "data")
    assert status == 2 and "100.0 % of the test split's ground truth is not in the catalog" in error


@pytest.mark.parametrize("column", ["year", "published"])
def test_a_catalog_whose_years_have_another_name_is_a_warning(tmp_path, make, caplog, column):
    books = [{"title": f"Book {n}", column: 1990 + n % 30} for n in range(40)]
    rows = [
        {
            "conversation_id": n,
            "messages": [{"role": "user", "content": f"{n} {_words(random.Random(n))}"}],
            "groundtruth": [{"title": books[n % 40]["title"], "year": books[n % 40][column]}],
        }
        for n in range(60)
    ]
    _write(tmp_path / "books", books, rows)
    with caplog.at_level("INFO"):
        _run(make(source="files", path="books", catalog="books.jsonl", **BY_SHARE), "data")
    assert ("name its column `year`" in caplog.text) == (column == "published")
    assert "40 items; rows: 40 train, 9 validation, 11 test" in caplog.text


def _song_files(folder, number=60):
    """Write songs, most of which share title and year with another, and conversations that name them in every way."""
    songs = [{"id": n, "title": f"Hello {n // 3}", "year": 2015, "artist": f"Artist {n % 3}"} for n in range(number)]
    draw, rows = random.Random(5), []
    for n in range(number):
        one, other, third = draw.sample(songs, 3)
        rows.append(
            {
                "conversation_id": n,
                "messages": [{"role": "user", "content": _words(draw)}],
                "groundtruth": [{"id": one["id"]}, {key: other[key] for key in ("title", "year", "artist")}],
                "seen_titles": [{"id": third["id"]}],
            }
        )
        rows[-1]["named"] = [f"{song['title']} - {song['artist']} (2015)" for song in (one, other, third)]
    _write(folder, [*songs, songs[0]], rows)
    return [song["named"] for song in rows]


def test_songs_of_one_title_are_told_apart_by_a_column_of_the_line(tmp_path, make, caplog):
    named = _song_files(tmp_path / "songs")
    project = make(source="files", path="songs", catalog="songs.jsonl", line_column="artist", **BY_SHARE)
    with caplog.at_level("INFO"):
        metrics, quarantine, catalog = _run(project, "data")
    assert _reasons(quarantine) == [("catalog", "61", "duplicate item")] and "duplicate item: 1" in caplog.text
    assert "60 items (1 merged: same id, or title and year, as an earlier row); rows: " in caplog.text
    assert metrics["merged"] == 1 and metrics["catalog"] == len(catalog) == 60
    assert [item.id for item in catalog.items] == [str(n) for n in range(60)]
    lines = {}
    for name in ("train", "validation", "test"):
        for row in pd.read_parquet(tmp_path / "data" / "processed" / f"{name}.parquet").to_dict("records"):
            truths = [f"{truth['title']} ({truth['year']})" for truth in row["groundtruth"]]
            lines[int(row["conversation_id"])] = [*truths, *row["seen_titles"]]
    assert [lines[n] for n in range(60)] == named
    assert all(len(catalog.indices_of_titles([seen])) == 1 for *_, seen in named)


def test_a_conversation_that_names_nearly_the_whole_catalog_is_an_error_before_any_training(tmp_path, make):
    games, draw = _games(4), random.Random(3)
    rows = [
        {"messages": [{"role": "user", "content": _words(draw)}], "groundtruth": ["Uno!"], "seen_titles": []}
        for _ in range(60)
    ]
    rows[3]["seen_titles"] = [game["title"] for game in games if game["title"] != "Uno!"][:9]
    _write(tmp_path / "games", games, rows)
    project = make(source="files", path="games", catalog="games.jsonl", **BY_SHARE)
    message = r"split, prompt '\w+': 5 of the catalog's 14 items are left .* fewer than common.list_length = 6; lower"
    with contextlib.chdir(project), pytest.raises(InputError, match=message):
        prepare(load_params(), Quarantine())


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (None, r"20 titles stand for several items: Hello 0 \(2015\) \(ids '0' and '1'\); .* set data.line_column"),
        ("singer", "no column 'singer' to tell items of one title apart"),
    ],
)
def test_songs_that_share_a_line_are_an_error(tmp_path, make, column, message):
    _song_files(tmp_path / "songs")
    project = make(source="files", path="songs", catalog="songs.jsonl", line_column=column, **BY_SHARE)
    with contextlib.chdir(project), pytest.raises(InputError, match=message):
        prepare(load_params(), Quarantine())


def test_files_of_games_without_years_run_to_demonstrations(tmp_path, make):
    folder, games = tmp_path / "games", _games()
    folder.mkdir()
    lines = [json.dumps(row, ensure_ascii=False) for row in [*games, {"title": "Schach", "aliases": "Chess|Échecs"}]]
    (folder / "games.jsonl").write_text("\n".join(lines), encoding="utf-8")
    rows = _game_rows(games)
    rows[0]["groundtruth"] = [{"title": "CHESS", "year": None}]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in rows)
    (folder / "conversations.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode() + b'{"messages": [{"ro')
    project = make(
        source="files",
        path="games",
        catalog="games.jsonl",
        validation_period="2024-05",
        test_period="2024-06",
    )
    set_params(project, {"demonstrations": {"until": None, "teacher": {"kind": "similarity"}, "adjust": {"epochs": 2}}})
    metrics, quarantine, catalog = _run(project, "data", "evidence", "demonstrations")
    assert metrics["validation"]["adjust"]["in_catalog"] == metrics["validation"]["adjust"]["format"] == 1
    assert _reasons(quarantine) == [
        ("conversations", "conversations.jsonl:151", "not JSON"),
        ("conversations", "conversations.jsonl:4", "no words of the user"),
        ("conversations", "conversations.jsonl:5", BAD_DATE),
        ("conversations", "conversations.jsonl:6", "no ground truth"),
        ("groundtruth", "conversations.jsonl:6", "NUL or half a character"),
    ]
    assert [item.year for item in catalog.items] == [None] * (len(games) + 1)
    processed = tmp_path / "data" / "processed"
    splits = {name: pd.read_parquet(processed / f"{name}.parquet") for name in ("train", "validation", "test")}
    assert {name: sorted(set(rows["date"])) for name, rows in splits.items()} == {
        "train": ["2024-01-16", "2024-02-16", "2024-03-16", "2024-04-16"],
        "validation": ["2024-05-16"],
        "test": ["2024-06-16"],
    }
    assert sum(map(len, splits.values())) == 147, "150 rows, three of them unusable"
