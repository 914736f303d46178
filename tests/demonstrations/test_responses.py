import json
import sys

import pytest

from tests.small_project import run_in

RESPONSES = [
    {
        "conversation": "User: a tense heist film",
        "response": "Here are some:\n1. Heat\n2. Primer (2004)\n3. Up! (2009)",
        "id": 7,
    },
    {
        "conversation": [{"role": "user", "content": "something with a desert"}],
        "response": "Dune (2021)\nHeat (1995)",
        "seen": ["dune"],
    },
]


@pytest.fixture
def files(tmp_path, catalog):
    (tmp_path / "responses.jsonl").write_text("".join(json.dumps(row) + "\n" for row in RESPONSES))
    catalog.to_frame().to_parquet(tmp_path / "catalog.parquet")
    return tmp_path


@pytest.fixture
def run(cli, files):
    """Runs `convrec parse` or `convrec remap` on the files, with options of its own."""
    given = ["--responses", files / "responses.jsonl", "--catalog", files / "catalog.parquet"]
    return lambda command, *more: cli(command, *given, *more)


def test_parse_shows_each_item_what_was_dropped_and_why(files, run):
    shown = run("parse", "--out", files / "out.jsonl").out
    assert "1  Heat  [exact] → Heat (1995)" in shown
    assert "2  Primer (2004)  [not in the catalog]\n" in shown
    assert "3  Up! (2009)  [normalised] → Up (2009)" in shown
    assert "dropped line 1 (a heading): Here are some:" in shown
    assert (
        "2 responses, 5 items" in shown
        and "exact 60.0%, normalised 20.0%, fuzzy 0.0%, truncated 0.0%, none 20.0%" in shown
    )
    first = json.loads((files / "out.jsonl").read_text().splitlines()[0])
    assert first["items"][2] == {"title": "Up!", "year": 2009, "match": "normalised", "items": ["Up (2009)"]}
    assert first["dropped"] == [{"line": 1, "text": "Here are some:", "reason": "a heading"}]


def test_remap_writes_the_top_items_with_scores_and_sources(files, run):
    assert "2 lists; placed by: exact" in run("remap", "--out", files / "deep" / "out.jsonl", "--top", "3").out
    first, second = (json.loads(line) for line in (files / "deep" / "out.jsonl").read_text().splitlines())
    assert first["id"] == 7 and first["conversation"] == RESPONSES[0]["conversation"]
    assert [(item["rank"], item["title"], item["source"]) for item in first["items"]] == [
        (1, "Heat", "exact"),
        (2, "Up", "normalised"),
        (3, first["items"][2]["title"], "semantic"),
    ]
    scores = [item["score"] for item in first["items"]]
    assert scores == sorted(scores, reverse=True)
    assert [item["title"] for item in second["items"]][0] == "Heat"
    assert "Dune" not in [item["title"] for item in second["items"]], "both films of the seen title are left out"


@pytest.mark.parametrize("seen", ["Heat", "heat", "Heat (1995)", "1. Heat (1995)"])
def test_seen_titles_in_any_form_stay_out(files, run, seen):
    row = {"conversation": "a heist \ud83d", "response": "Heat (1995)\nUp (2009)", "seen": [seen]}
    (files / "responses.jsonl").write_text(json.dumps(row))
    run("remap", "--out", files / "out.jsonl")
    items = json.loads((files / "out.jsonl").read_text())["items"]
    assert [item["title"] for item in items][0] == "Up" and "Heat" not in [item["title"] for item in items]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{}", "line 1: give the fields `response`"),
        ('{"response": 3, "conversation": "a"}', "line 1: give the fields"),
        ('{"response": "a"}', "line 1: give the fields"),
        ('{"response": "a", "conversation": [{"role": "user"}]}', "line 1: give the fields"),
        ('{"response": "a", "conversation": "b", "seen": 3}', "line 1: give the fields"),
        ("{", "line 1: not JSON"),
        ("", "it holds no row"),
    ],
)
def test_a_wrong_row_is_named(files, run, row, message):
    (files / "responses.jsonl").write_text(row)
    ended = run("remap", "--out", files / "out.jsonl")
    assert ended.status == 2 and message in ended.err
    assert not (files / "out.jsonl").exists()


def test_a_reader_that_stops_early_is_no_error(files):
    parse = f"{sys.executable} -m convrec.cli parse --responses responses.jsonl --catalog catalog.parquet"
    result = run_in(files, "bash", "-c", f"{parse} | head -n 1")
    assert result.stdout == "Response 1: 3 items\n" and not result.stderr


@pytest.mark.parametrize(
    "option", ["--top 0", "--min-ratio 0", "--min-ratio-without-year 101", "--conversation-weight -1"]
)
def test_options_out_of_range(files, run, option):
    ended = run("remap", "--out", files / "out.jsonl", *option.split())
    assert ended.status == 2 and option.split()[0] in ended.err
