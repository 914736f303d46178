import json
import logging
import shutil
import sys
import unicodedata
from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.evidence import Evidence
from convrec.classical.guidance import Guidance
from convrec.data.catalog import Catalog, Item
from convrec.data.conversations import messages_of
from convrec.data.schemas import write_catalog
from convrec.data.wishes import told
from convrec.project.errors import InputError
from convrec.registry.recommenders import open_recommender
from convrec.service.recommender import Recommendation, RecommendedList, Recommender
from convrec.service.translation import ModelFiles
from tests.generation.vocabularies import log_weights
from tests.rows import make_row
from tests.service.recommending import CATALOG, SETTINGS, make_recommender, save_model
from tests.small_project import ROOT

RECOMMENDER = make_recommender()
LINES = [str(item) for item in CATALOG.items]


def _lines(conversation, *arguments, **options):
    return [str(r) for r in RECOMMENDER.recommend([conversation], *arguments, **options)[0]]


@settings(max_examples=12)
@given(
    st.lists(st.sampled_from(LINES), max_size=4),
    st.lists(st.sampled_from(LINES), max_size=4),
    st.none() | st.lists(st.sampled_from(LINES), min_size=11, unique=True),
    st.integers(1, 15),
)
def test_lists_hold_what_may_be_recommended_and_nothing_else(named, denied, allowed, n):
    seen = {line for line in LINES if line.split(" (")[0] in {name.split(" (")[0] for name in named}}
    left = (set(LINES) if allowed is None else set(allowed)) - seen - set(denied)
    words = "I loved " + ", ".join(named)
    if n > len(left):
        with pytest.raises(InputError, match=rf"n = {n}: {len(left)} of the catalog's 15 items are left"):
            _lines(words, n, denied, allowed)
        return
    lines = _lines(words, n, denied, allowed)
    assert len(lines) == len(set(lines)) == n and set(lines) <= left


def test_a_list_does_not_depend_on_those_beside_it():
    conversations = ["User: a film", "I loved Heat and Her\nAssistant: why?\nUser: space", "please " * 300, "Up (2009)"]
    together = RECOMMENDER.recommend(conversations, 5)
    for conversation, expected in zip(conversations, together, strict=True):
        (alone,) = RECOMMENDER.recommend([conversation], 5)
        assert [str(r) for r in alone] == [str(r) for r in expected]
    assert [r.rank for r in together[0]] == [1, 2, 3, 4, 5]
    assert RECOMMENDER.recommend([]) == []


def test_the_guide_of_a_conversation_guides_its_list():
    asked = []

    def guide(rows):
        asked.extend((row["messages"][-1]["content"], row["seen_titles"]) for row in rows)
        return [log_weights({0: 90.0, 2: 60.0} if "Her" in row["seen_titles"] else {}) for row in rows]

    guided = make_recommender(guide=guide)
    texts = ["I loved Her and Alien", "I liked Heat and Fargo"]
    first, second = guided.recommend(texts, 5)
    assert asked == [(texts[0], ["Alien", "Her"]), (texts[1], ["Fargo", "Heat"])]
    assert [str(item) for item in first[:2]] == [LINES[0], LINES[2]] != _lines(texts[0], 2)
    assert second == RECOMMENDER.recommend(texts[1], 5)
    assert [str(item) for item in guided.recommend(texts[0], 2, deny=["Heat"])] != [LINES[0], LINES[2]]


def test_a_list_keeps_the_wishes_of_its_conversation_and_tells_them():
    crimes = {str(item) for item in CATALOG.items if "crime" in item.metadata.get("genres", "")}
    answer = RECOMMENDER.recommend("no crime please, made after 1980", 5, reasons=True)
    assert not {str(item) for item in answer} & crimes and all(item.year > 1980 for item in answer)
    assert str(answer).startswith("I understood: no crime · after 1980\nrank  item")
    assert not any("crime" in reason for item in answer for reason in item.reasons or ())
    everything = RECOMMENDER.recommend("no crime please", 15, wishes={"no crime": False})
    assert crimes < {str(item) for item in everything} and str(everything).startswith("removed: no crime\n")
    too_few = RECOMMENDER.recommend("no crime please", 12)
    assert str(too_few).startswith(f"dropped, because too few are left: no crime ({15 - len(crimes)})\n")
    (fewer,) = RECOMMENDER.recommend(["no crime please"], 12, or_fewer=True)
    assert len(fewer) == 15 - len(crimes)
    assert "no crime; few are left: without 'no crime', there would be 15\n" in str(fewer)


def test_a_preferred_wish_guides_a_list_unless_it_is_removed_and_fills_it_if_it_is_to_be_kept():
    evidence = Evidence.fit([make_row("a", [("Up", None)], "hi")], CATALOG, TfidfEmbedder, neighbours=1, kept=15)
    recommender = make_recommender(guide=Guidance(evidence, {"asked": 30.0}, {}))
    crimes = {str(item) for item in CATALOG.items if "crime" in item.metadata.get("genres", "")}
    count = len(crimes)
    answer = recommender.recommend("crime please", count)
    assert {str(item) for item in answer} == crimes and str(answer).startswith("preferred: crime\n")
    alone = make_recommender().recommend("crime please", count)
    assert str(alone).startswith("understood, but without weight in this model: crime\n")
    assert recommender.recommend("crime please", count, wishes={"crime": False}) == alone != answer
    assert {str(item) for item in make_recommender().recommend("crime please", count, wishes={"crime": True})} == crimes


def test_who_liked_an_item_of_those_who_asked_alike_is_a_reason():
    rows = [make_row(f"h{place}", [("Up", None)], f"heists {place}") for place in range(14)]
    rows += [make_row(f"o{place}", [("Her", None)], f"romance {place}") for place in range(60)]
    evidence = Evidence.fit(rows, CATALOG, TfidfEmbedder, neighbours=30, kept=5)
    guide = Guidance(evidence, {"neighbours": 3.0}, {})
    (first, *others) = make_recommender(guide=guide).recommend("a film with heists please", 5, reasons=True)
    assert (first.title, first.reasons) == ("Up", ("Liked by 14 people who asked for something like this",))
    assert not [item for item in others if "people" in " ".join(item.reasons)]
    assert make_recommender(guide=guide).recommend("a film with heists please", 5)[0].reasons is None


def test_text_and_messages_are_the_same_conversation():
    text = "User: I loved Heat\nAssistant: why?\nUser: space"
    expected = RECOMMENDER.recommend([text], 4)
    assert RECOMMENDER.recommend([messages_of(text)], 4) == expected
    assert RECOMMENDER.recommend([[*messages_of(text), {"role": "user", "content": " "}]], 4) == expected
    alone = RECOMMENDER.recommend("I loved Heat", n=4)
    assert isinstance(alone, RecommendedList) and [alone] == RECOMMENDER.recommend(["User: I loved Heat"], 4)


def test_line_ends_accents_and_invisible_characters_do_not_change_a_list():
    text = "User: I loved Amélie & Heat\nand more\nAssistant: why?\nUser: space"
    expected = RECOMMENDER.translator.prepare([text], 4)[0]
    assert expected.request.banned == CATALOG.indices_of_titles(["Amélie", "Heat"])

    def odd(words):
        form = unicodedata.normalize("NFD", words).replace("Heat", "He\u200bat\u200e")
        return form.replace("&", "&amp;").replace("\n", "\r\n")

    for asked in (odd(text), [message | {"content": odd(message["content"])} for message in messages_of(text)]):
        (found,) = RECOMMENDER.translator.prepare([asked], 4)
        assert found[:2] == expected[:2] and told(found.wishes) == told(expected.wishes)
        assert {**found.row, "wishes": []} == {**expected.row, "wishes": []}
    assert _lines("x", 1, allow=["\ufeffHeat (1975)\u200e"]) == ["Heat (1975)"]


def test_titles_are_denied_and_allowed_as_the_catalog_finds_them():
    again = make_recommender(settings=replace(SETTINGS, recommend_seen=True))
    assert {str(r) for r in again.recommend(["I loved Heat"], 15)[0]} == set(LINES)
    assert set(_lines("x", 13, deny=["dune"])) == {line for line in LINES if not line.startswith("Dune")}
    assert set(_lines("x", 14, deny=["Dune (2020)"])) == set(LINES) - {"Dune (2021)"}
    assert set(_lines("x", 3, allow=["amelie", "Casablanca", "Jaws"])) == {"Amélie (1999)", "Casablanca", "Jaws (2005)"}


@pytest.mark.parametrize(
    ("conversation", "options", "message"),
    [
        ("x", {"allow": ["Heat", "Zzz (1999)"]}, "allow: 'Zzz (1999)' is not in the catalog; write it"),
        ("x", {"deny": "Heat"}, "deny: 'Heat' is not a list of titles"),
        ("x", {"n": 0}, "n = 0: give a whole number from 1"),
        ("x", {"n": True}, "n = True: give a whole number from 1"),
        ("I like\0it", {}, "conversation 1: contains a NUL, or text that is not UTF-8"),
        ([{"role": "user", "content": None}], {}, "conversation 1: {'role': 'user', 'content': None} is not a message"),
    ],
)
def test_what_cannot_be_answered_is_named(conversation, options, message):
    with pytest.raises(InputError) as raised:
        RECOMMENDER.recommend([conversation], **{"n": 2, **options})
    assert str(raised.value).startswith(message)


def test_a_list_too_long_for_the_model_is_refused(monkeypatch):
    monkeypatch.setattr(RECOMMENDER.translator, "positions", 60)
    with pytest.raises(InputError, match="n = 12: the list leaves no room for the conversation"):
        _lines("x", 12)


def test_a_model_with_item_tokens_follows_the_catalog(tmp_path):
    """An item is new, two are gone: the new one is recommended if the evidence prefers it."""
    folder = save_model(tmp_path / "model")
    later = Catalog([*CATALOG.items[2:], Item("Barbie", 2023, {"genres": "romance"})])
    files = []
    for name, catalog in (("before", CATALOG), ("after", later)):
        files.append(tmp_path / f"{name}.parquet")
        write_catalog(catalog, files[-1])
    before, after = (Recommender.load(ModelFiles(folder, file, SETTINGS, "cpu")) for file in files)
    first = [str(r) for r in before.recommend("User: heists", 15)]
    second = [str(r) for r in after.recommend("User: heists", 14)]
    assert sorted(second) == sorted(map(str, later.items)) and set(first) - set(second) == {"Heat (1975)", "Her (1978)"}
    after.translator.guide = lambda rows: [log_weights({13: 9.0})] * len(rows)
    assert str(after.recommend("User: heists", 3)[0]) == "Barbie (2023)"


def test_a_table_has_columns():
    answer = RecommendedList([Recommendation(1, "Heat", 1995), Recommendation(12, "Up & <i>", None)])
    assert str(answer).splitlines() == ["rank  item", "   1  Heat (1995)", "  12  Up & <i>"]
    frame = answer.to_frame()
    assert frame["title"].tolist() == ["Heat", "Up & <i>"]
    assert frame["year"].dtype == "Int64" and frame["year"].isna().tolist() == [False, True]


def test_recommend_prints_a_list_or_json(project, monkeypatch, cli):
    monkeypatch.chdir(project)
    options = ["-n", "3", "--model", "model", "--deny", "Up", "--deny", "Her"]
    wishes, *table = cli("recommend", "I loved Heat", *options).out.splitlines()
    assert wishes == "like: Heat" and len(table) == 4 and table[0].split() == ["rank", "item", "reasons"]
    assert any("  Like Heat (1975): " in line for line in table) and all(len(line) <= 100 for line in table)
    monkeypatch.setenv("COLUMNS", "30")
    title, reason = cli("recommend", "I loved Heat", *options).out.splitlines()[2:4]
    assert title.startswith("   1  ") and reason.startswith("      ") and len(reason) <= 30, "below the item"
    assert not logging.getLogger("convrec.classical.evidence").isEnabledFor(logging.INFO), "of one question"
    monkeypatch.setattr(sys, "stdin", StringIO("User: I loved Heat\n"))
    rows = json.loads(cli("recommend", "-", *options, "--json").out)
    assert [set(row) for row in rows] == [{"rank", "title", "year", "reasons"}] * 3
    assert [line.split()[:2] for line in table[1:]] == [[str(row["rank"]), row["title"]] for row in rows]
    allowed = cli("recommend", "x", "-n", "2", "--model", "model", "--allow", "Up", "--allow", "Her", "--json").out
    assert {row["title"] for row in json.loads(allowed)} == {"Up", "Her"}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("recommend x --model nowhere", "--model nowhere: not a model's folder; give `champion`, `challenger`, "),
        (
            "recommend x",
            "convrec-movies: no version is registered; run `python -m flows.train`, or ask the packaged mo",
        ),
        ("chat", "ask the packaged model: --model demo"),
        ("app --port 99999", 'Invalid value "99999" for --port. Must be <= 65535.'),
        ("app", "convrec-movies: no version is registered; run `python -m flows.train`, or ask the packaged model: --"),
        ("app --model a --challenger a", "--challenger a: this is the same as the first model; give another"),
    ],
)
def test_a_model_that_is_not_there_ends_with_one_line(command, message, make_store, here, cli):
    make_store(here)
    status, _, output = cli(*command.split())
    last = output.splitlines()[-1]
    assert status == 2 and last.startswith(f"convrec {command.split()[0]}: ") and message in last


def test_a_service_says_that_it_loads_before_its_libraries_are_imported(tmp_path, monkeypatch, cli):
    shown = []

    def status(_console, text):
        shown.append((text, "convrec.registry.recommenders" in sys.modules))
        raise InputError("seen")

    monkeypatch.delitem(sys.modules, "convrec.registry.recommenders", raising=False)
    monkeypatch.setattr(Console, "status", status)
    assert cli("app").status == 2 and cli("recommend", "x").status == 2
    assert shown == [("loading the service", False), ("loading the champion model", False)]


def test_a_folder_needs_the_project_s_catalog(project, here):
    shutil.copy(ROOT / "params.yaml", here)
    with pytest.raises(InputError, match="needs the project's catalog; run `dvc repro data` first"):
        open_recommender(str(project / "model"))
