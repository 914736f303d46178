"""`convrec init` on small files: what it finds, what it writes, and what it refuses."""

import datetime
import json
import random
import re
import shlex
from pathlib import Path

import pytest

from convrec.project.config.params import load_params
from tests.small_project import make_stages

NOUNS = ("River", "House", "Garden", "King", "Letter", "Night")
TITLES = [f"{one} {noun}" for one in ("Silent", "Red", "Lost", "Golden", "Winter") for noun in NOUNS]


@pytest.fixture
def folder(tmp_path, monkeypatch, make_store):
    """A project with the real profiles and an empty folder for files, entered."""
    make_stages(tmp_path, {})
    (tmp_path / "profiles").symlink_to(Path("profiles").resolve())
    (tmp_path / "mine").mkdir()
    make_store(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return Path("mine")


def _write_conversations(folder, *parts):
    """Write conversations of so many days, which the changes complete; each tenth likes a book that no catalog has."""
    rows, rng = [], random.Random(1)
    for number, days, changes in parts:
        for place in range(number):
            seen, liked = rng.sample(TITLES, 2)
            date = datetime.date(2024, 1, 1) + datetime.timedelta(days=days * place // number)
            said = [{"role": "user", "content": f"After {seen}, {rng.random():.9f} {rng.random():.9f} things"}]
            row = {"date": str(date), "messages": said, "groundtruth": ["Elsewhere" if place % 10 == 0 else liked]}
            rows.append({"user_id": f"u{place % 90}", **row, **changes})
    (folder / "conversations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_catalog(folder, name="catalog.csv"):
    rows = [{"title": title, "year": 1950 + place, "author": "A. Writer"} for place, title in enumerate(TITLES)]
    lines = map(json.dumps, rows) if name.endswith(".jsonl") else (",".join(map(str, row.values())) for row in rows)
    (folder / name).write_text("\n".join([*([",".join(rows[0])] if name.endswith(".csv") else []), *lines]) + "\n")


def _write_log(folder, values):
    """Write a log with 12 rows of each of 100 users, and its items without the last one."""
    rng, rows = random.Random(3), ["user_id,item_id,event,timestamp"]
    for place in range(1200):
        rows.append(f"u{place % 100},b{rng.randrange(31)},{rng.choice(values)},{1_704_067_200 + 7_000 * place}")
    (folder / "clicks.csv").write_text("\n".join(rows) + "\n")
    lines = (f"b{place},{title},{place % 3}" for place, title in enumerate(TITLES))
    (folder / "things.csv").write_text("\n".join(["item_id,title,brand", *lines]) + "\n")


@pytest.mark.parametrize("catalog", ["catalog.csv", "catalog.jsonl"])
def test_conversations_and_a_catalog_give_parameters_that_the_stage_data_takes(folder, cli, catalog):
    _write_catalog(folder, catalog)
    _write_conversations(folder, (400, 365, {}), (20, 1, {"date": "31.12.2024"}))
    (folder / "notes.txt").write_text("nothing to read")
    before = Path("params.yaml").read_text()
    status, output, _ = cli("init", folder, "--set", "common.seed=5")
    assert status == 0 and Path("params.previous.yaml").read_text() == before
    for found in (
        "90.0% of 400 are in the catalog; the commonest others: Elsewhere (40)",
        "conversations  400, 400 prompts of 90 people",
        "dates          2024-01-01 to 2024-12-30, 0 rows have none",
        "left out       20 conversations: date is no time from 1990 to 2099",
        "not used       notes.txt: (not .csv, .jsonl or .parquet)",
        "model          registered as convrec-books",
    ):
        assert found in output
    params = load_params()
    assert (params.common.profile, params.common.seed, params.data.catalog) == ("files", 5, catalog)
    assert list(params.common.domain.model_dump().values()) == ["book", "books", "publication", "the author"]
    assert (str(params.data.validation_period), str(params.data.test_period)) == ("2024-11", "2024-12")
    assert params.rank_grpo.max_steps == 42  # two passes over 334 prompts, 16 at a step
    by_hand = shlex.split(output.partition("by hand:")[2].partition("Next:")[0].replace("\\\n", " "))
    assert cli(*by_hand[1:]).out == "params.yaml is profile files already\n"
    assert cli("run", "data").status == 0
    rows = json.loads(Path("metrics/data.json").read_text())
    assert all(f"{name:15}{rows[name]['rows']} rows of 2024" in output for name in ("validation", "test"))


def test_a_log_and_its_catalog_give_likes_periods_and_words(folder, cli):
    _write_log(folder, ["purchase", "view", "return", "purchase"])
    status, output, _ = cli("init", folder)
    assert status == 0 and "log            1,200 rows of 100 users and 31 items" in output
    assert "of 1,200 are in the catalog; the commonest others: b30 (" in output
    params = load_params()
    log = params.data.interactions
    assert (params.data.source, log.log, params.common.profile) == ("interactions", "clicks.csv", "log")
    assert (log.liked, log.disliked, params.common.domain.people) == (["purchase"], ["return"], "the brand")
    assert params.registered_model == "convrec-products" and params.data.test_period is not None
    assert cli("run", "data").status == 0
    assert "--set common.domain.item=toy \\" in cli("init", folder, "--items", "toys").out


@pytest.mark.parametrize(("values", "rules"), [([3, 8, 10], (8.0, 4.0)), ([1.0, 4.5], (3.6, 1.8)), ([1], (0.8, 0.0))])
def test_likes_are_four_fifths_of_the_largest_rating(folder, cli, values, rules):
    _write_log(folder, values)
    assert cli("init", folder).status == 0
    assert (load_params().data.interactions.liked, load_params().data.interactions.disliked) == rules


@pytest.mark.parametrize(
    ("days", "changes", "periods"),
    [
        (30, {}, ("2024-01-25/2024-01-27", "2024-01-28/2024-01-30")),  # the last month is all there is
        (900, {}, ("2025-12-21/2026-03-20", "2026-03-21/2026-06-17")),  # a month has too few rows
        (365, {"date": None}, ("None", "None")),
    ],
)
def test_periods_are_tenths_where_months_do_not_suffice_and_shares_without_dates(folder, cli, days, changes, periods):
    _write_catalog(folder)
    _write_conversations(folder, (500, days, changes))
    assert cli("init", folder).status == 0
    assert (str(load_params().data.validation_period), str(load_params().data.test_period)) == periods


def test_of_conversations_and_a_log_both_are_read_unless_one_is_named(folder, cli):
    _write_log(folder, [5])
    _write_conversations(folder, (400, 365, {}))
    one = {"files": ["--conversations", "conversations.jsonl"], "interactions": ["--log", "clicks.csv"]}
    for sources, options in ({"files, interactions": []} | one).items():
        output = cli("init", folder, "--dry-run", *options).out
        assert f"source         {sources}; profile " in output and "params.yaml stays as it is (dry run)" in output
    assert not Path("params.previous.yaml").exists() and not Path("data").exists()


@pytest.mark.parametrize(
    ("catalogs", "conversations", "options", "message"),
    [
        (["catalog.csv"], (40, 365, {}), [], "mine: 40 prompts, and 300 are the least; add conversations"),
        (["catalog.csv"], (400, 365, {"date": "31.12.2024"}), [], "(date is no time from 1990 to 2099, in ISO 8601"),
        (
            ["catalog.csv"],
            (400, 365, {"groundtruth": ["Solaris"]}),
            [],
            "none of the 1 items of groundtruth, such as Sol",
        ),
        (["catalog.csv", "books.jsonl"], (40, 365, {}), [], "each of books.jsonl, catalog.csv looks like the catalog"),
        (["catalog.csv"], (40, 365, {}), ["--catalog", "b.csv"], "--catalog b.csv: not among the files of mine (cata"),
        (["catalog.csv"], None, [], "no conversations*.jsonl or .parquet, with messages and groundtruth, and no log"),
        ([], (40, 365, {}), [], "no catalog, with a column 'title' or 'name'; rename a column, or give --catalog FILE"),
        ([], None, [], "mine/clicks.csv: values click do not tell who liked an item; name the events"),
    ],
)
def test_what_cannot_be_trained_is_refused(folder, cli, catalogs, conversations, options, message):
    for name in catalogs:
        _write_catalog(folder, name)
    if conversations:
        _write_conversations(folder, conversations)
    if not catalogs and not conversations:
        _write_log(folder, ["click"])
    status, _, error = cli("init", folder, *options)
    assert status == 2 and message in error and error.count("\n") == 1
    assert not Path("params.previous.yaml").exists()


def test_the_sample_of_a_log_is_read_whole(folder, cli):
    assert cli("data", "sample", "sample", "--log", "--conversations", "90").status == 0
    status, output, _ = cli("init", "sample", "--dry-run")
    assert (
        status == 0 and re.search(r"log's items +100\.0% of", output) and "data.interactions.log=events.csv" in output
    )
    assert "'data.interactions.liked=[\"like\"]'" in output
