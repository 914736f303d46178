import json
import math
import re

import pytest

from convrec.data.catalog_files import open_catalog
from convrec.evaluation import comparison
from convrec.evaluation.predictions import ScoringSettings, score_predictions

CATALOG = "title,year\nHeat,1995\nDune,1984\nDune,2021\nUp,2009\nAlien,1979\n"
ROWS = [
    {"response": "Up (2009)\nHeat (1995)", "groundtruth": [["Heat", 1995], ["Alien", 1979]], "items": math.nan},
    {"items": ["Primer (2004)", ["Dune", 2021], "Up (2009)"], "groundtruth": [{"title": "Up", "year": 2009}]},
    {"response": "Dune (2021)\nAlien (1979)", "groundtruth": [["Alien", None]], "seen_titles": ["dune"]},
]
SETTINGS = ScoringSettings(cutoffs=(1, 2), list_length=3)
pytestmark = pytest.mark.usefixtures("few_persons")


def _write(folder, rows):
    (folder / "catalog.csv").write_text(CATALOG)
    path = folder / "rows.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.fixture
def score(cli, tmp_path):
    """Scores rows by the command, with options of their own."""

    def run(rows, *more):
        usual = {"--catalog": tmp_path / "catalog.csv", "--cutoffs": "1,2", "--list-length": "3"}
        usual["--predictions"] = _write(tmp_path, rows)
        return cli("score", *(text for name in usual if name not in more for text in (name, usual[name])), *more)

    return run


def test_json_holds_means_and_intervals(score):
    found = json.loads(score(ROWS, "--json").out)
    assert found["n"] == found["n_prompts"] == 3
    assert found["recall@1"] == pytest.approx((0 + 0 + 1) / 3)
    assert found["recall@2"] == pytest.approx((1 / 2 + 1 + 1) / 3)
    second = 1 / math.log2(3)
    assert found["ndcg@2"] == pytest.approx((second / (1 + second) + second + 1) / 3)
    assert found["mrr"] == pytest.approx((1 / 2 + 1 / 2 + 1) / 3)
    assert found["in_catalog"] == pytest.approx((1 + 2 / 3 + 1) / 3)
    assert found["length"] == pytest.approx(7 / 3) and found["seen"] == pytest.approx((0 + 0 + 1 / 2) / 3)
    assert set(found["intervals"]) == set(found) - {"n", "n_prompts", "intervals"}
    assert all(low <= found[name] <= high for name, (low, high) in found["intervals"].items())
    assert found["intervals"]["recall@1"] == [0, 1]
    rewarded = json.loads(score(ROWS, "--json", "--protocol", "reward").out)  # every line keeps its rank
    assert rewarded["recall@1"] == 0 and rewarded["recall@2"] == pytest.approx((1 / 2 + 0 + 1) / 3)


def test_the_table_shows_n(score):
    shown = score([{**ROWS[0], "prompt_id": "a"}, {**ROWS[0], "prompt_id": "a"}, ROWS[2]]).out
    assert "3 rows, 2 prompts; protocol evaluation, 3 ranks" in shown
    assert max(map(len, shown.splitlines())) <= 80
    (line,) = [line for line in shown.splitlines() if line.split()[:1] == ["recall@2"]]
    assert line.split()[1:] == ["0.6667", "0.5000", "to", "1.0000", "3"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"prompt_id": "a"}, {"prompt_id": "b"}),
        ({"conversation_id": "a"}, {"conversation_id": "b"}),
        ({"user_id": 1, "conversation_id": "c"}, {"user_id": 2, "conversation_id": "c", "prompt_id": "p"}),
        ({"user_id": "", "conversation_id": "c"}, {"user_id": None, "conversation_id": "d"}),
        ({"user_id": "Anonymous", "conversation_id": "c"}, {"user_id": "null", "conversation_id": "d"}),
    ],
)
def test_rows_of_one_person_are_drawn_together(tmp_path, catalog, one, other):
    hit, miss = ROWS[0] | {"groundtruth": [["Up", 2009]]}, ROWS[0] | {"groundtruth": [["Dune", 1984]]}
    apart = score_predictions(_write(tmp_path, [hit, miss] * 10), catalog, SETTINGS)
    alike = [{**hit, **one}, {**miss, **other}] * 10
    together = score_predictions(_write(tmp_path, alike), catalog, SETTINGS)
    assert apart.intervals["recall@1"].mean == together.intervals["recall@1"].mean == 0.5
    assert apart.n_prompts == 20
    assert together.intervals["recall@1"][1:3] == (0, 1) and apart.intervals["recall@1"].low > 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 2: not JSON; give one JSON object per line"),
        ("[1]", "line 2: no JSON object"),
        ('{"response": ' + "[" * 5000, "line 2: not "),
        ({"groundtruth": [["Up", 2009]]}, "give exactly one of the fields 'response' and 'items'"),
        ({**ROWS[0], "items": []}, "give exactly one of the fields 'response' and 'items'"),
        ({**ROWS[1], "items": "Up"}, "field 'items' is 'Up': Input should be a valid list"),
        ({**ROWS[1], "items": [["Up", "soon"]]}, "field 'items': .*year is no number; give"),
        ({**ROWS[0], "groundtruth": []}, r"field 'groundtruth' is \[\]: List should have at least 1 item"),
        ({**ROWS[0], "groundtruth": [["Up", 20090]]}, "field 'groundtruth': .*year is not from 1000 to 2100"),
        ({**ROWS[0], "seen_titles": "Up"}, "field 'seen_titles' is 'Up': Input should be a valid list"),
        ({**ROWS[0], "prompt_id": 1.5}, "field 'prompt_id' is 1.5: Input should be a valid string"),
    ],
)
def test_a_bad_row_is_an_error_that_says_where_and_what(score, row, message):
    output = score([ROWS[0], row])
    assert output.status == 2 and not output.out and "rows.jsonl: line 2: " in output.err
    assert re.search(message, output.err)


@pytest.mark.parametrize(("length", "cutoffs"), [(20, [5, 10, 15, 20]), (12, [5, 10]), (3, [3])])
def test_the_cutoffs_not_given_are_those_up_to_the_length(tmp_path, cli, length, cutoffs):
    files = ["--predictions", _write(tmp_path, ROWS), "--catalog", tmp_path / "catalog.csv"]
    found = json.loads(cli("score", *files, "--list-length", length, "--json").out)
    assert [name for name in found if name.startswith("ndcg")] == [f"ndcg@{k}" for k in cutoffs]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cutoffs", "5,x"], "--cutoffs 5,x: give integers"),
        (["--cutoffs", "0,2"], "--cutoffs 0,2: give numbers from 1 to --list-length 3"),
        (["--list-length", "0"], 'Invalid value "0" for --list-length. Must be >= 1.'),
        (["--predictions", "nowhere.jsonl"], "--predictions nowhere.jsonl: no such file"),
        (["--catalog", "nowhere.csv"], "--catalog nowhere.csv: no such file"),
    ],
)
def test_bad_options_are_told(score, options, message):
    ended = score(ROWS, *options)
    assert ended.status == 2 and message in ended.err


def test_an_empty_file_and_one_that_is_not_utf_8_are_told(tmp_path, cli):
    for content, message in ((b"\n \n", "no rows; give one object"), (b'{"a": "\xff"}\n', "line 1: not UTF-8")):
        path = _write(tmp_path, [])
        path.write_bytes(content)
        ended = cli("score", "--predictions", path, "--catalog", tmp_path / "catalog.csv")
        assert ended.status == 2 and message in ended.err


SONGS = "id,title,year,artist\na,Hello,2015,Adele\nb,Hello,2015,Lionel Richie\nc,Hello,1984,Lionel Richie\n"


BY_ID, COLUMN = (), ("artist",)


@pytest.mark.parametrize(
    ("column", "items", "truth", "seen", "hits"),
    [
        (BY_ID, [{"id": "c"}, {"id": "x"}], [{"id": "c"}, {"id": "x"}], [], [1, 0, 0]),
        (BY_ID, [{"id": "c"}] * 2, [{"id": "c"}, ["Hello", 1984], {"id": "c"}], [], [1, 0, 0]),
        (BY_ID, [{"id": "c"}] * 2, [{"id": "c"}, {"id": "x"}, {"id": "y"}, {"id": "x"}], [], [1, 0, 0]),
        (BY_ID, ["Hello (2015)", ["Hello", 2015]], [{"id": "a"}, {"id": "b"}], [], [0, 0, 0]),
        (COLUMN, [{"id": "b"}, {"id": "a"}], [{"id": "a"}], [], [0, 1, 0]),
        (COLUMN, [{"id": "a"}, {"id": "b"}], [{"id": "a"}, {"id": "b"}], [{"id": "a"}], [0, 1, 0]),
        (COLUMN, ["Hello - Lionel Richie (2015)", "1. hello - adele (2015)"], [["Hello - Adele", 2015]], [], [0, 1, 0]),
        (COLUMN, [{"title": "Hello", "year": 2015, "artist": "Adele"}], [{"id": "a"}], [], [1, 0, 0]),
        (COLUMN, [{"id": "a"}], [{"title": "Hello", "year": 2015, "artist": "Adele"}], [], [1, 0, 0]),
        (COLUMN, [{"id": "a"}], [{"id": "a"}], [{"title": "Hello", "artist": "Adele"}], [0, 0, 0]),
        (COLUMN, [{"id": "b"}], [{"id": "b"}], ["Hello - Adele (2015)"], [1, 0, 0]),
    ],
)
def test_items_of_one_title_are_told_apart_by_id_or_column(tmp_path, column, items, truth, seen, hits):
    (tmp_path / "songs.csv").write_text(SONGS)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"items": items, "groundtruth": truth, "seen_titles": seen}) + "\n")
    catalog, _ = open_catalog(tmp_path / "songs.csv", *column)
    scores = score_predictions(path, catalog, ScoringSettings((1, 2, 3), 3, "reward", 0, *column))
    num_truths = len({json.dumps(one) for one in truth} - {'["Hello", 1984]'})
    at = [round(scores.intervals[f"recall@{k}"].mean * num_truths, 9) for k in (1, 2, 3)]
    assert [now - before for before, now in zip([0, *at], at, strict=False)] == hits


def test_few_persons_have_no_interval(score, monkeypatch):
    monkeypatch.setattr(comparison, "MIN_PERSONS", 6)
    assert json.loads(score(ROWS, "--json").out)["intervals"]["recall@1"] == [None, None]
    assert re.search(r"recall@1 +0\.\d+ +too few persons +3", score(ROWS).out)
