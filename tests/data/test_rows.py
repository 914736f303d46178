"""What a row of one's own may look like: every form of its cells, and what is wrong with the others."""

import datetime
import json
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.data.catalog import Catalog, Item
from convrec.data.quarantine import Quarantine
from convrec.data.rows import BAD_DATE, usable_date, usable_item, usable_messages, usable_rows
from convrec.data.times import read_time, time_column
from convrec.data.titles import normalise_text
from tests.rows import make_items

GAMES = Catalog([Item("Chess", None), Item("Hello - Adele", 2015, own_id="7"), Item("Hello", 2015, own_id="8")])
ASK = [{"role": "user", "content": "A game for two, please."}]
WEST = datetime.timezone(-datetime.timedelta(hours=5))
HIVE_OF_2000 = [{"title": "Hive", "year": "2000"}, {"title": "Hive", "year": 2000.0}, {"title": "Hive (2000)"}]
HIVE_OF_2000 += [["Hive", 2000], "Hive (2000)"]


@pytest.mark.parametrize(
    ("value", "title", "year"),
    [
        *((value, "Hive", 2000) for value in HIVE_OF_2000),
        ({"title": "Hive", "year": float("nan")}, "Hive", None),
        ({"title": 1830, "year": 1986}, "1830", 1986),
        ("  Hive \n of  bees ", "Hive of bees", None),
        ("(1984)", "(1984)", None),
        ("שח \u202e e\u0301", "שח \u00e9", None),
        ("\u200eHeat (1995)\u200e", "Heat", 1995),
        ("\ufeffAl\u200bien", "Alien", None),
        ("Fast &amp; Furious", "Fast & Furious", None),
    ],
)
def test_an_item_has_three_forms(value, title, year):
    assert usable_item(value) == {"title": title, "year": year}


DAYS = {
    "": [None, float("nan")],
    "1990-01-01": ["1990-01-01"],
    "2019-10-01": ["2019-10-01 23:00:00 UTC"],
    "2019-10-02": ["2019-10-01 23:00:00 -0200"],
    "2023-11-14": ["2023-11-14 23:13:20+00", "1.7e9"],
    "2024-03-04": ["2024-03-05T01:10:00+05:00"],
    "2024-03-05": ["2024-03-05", " 2024-03-05 21:10 ", "2024-03-05T21:10", "20240305T211000Z", "20240305", 20240305],
    "2024-03-06": ["2024-03-05T21:10:00-05:00", 1_709_683_200, 1_709_683_200_000],
    "2099-12-31": ["2099-12-31"],
}
DAYS["2024-03-05"] += ["1709683199.9", datetime.date(2024, 3, 5)]
DAYS["2024-03-06"] += [datetime.datetime(2024, 3, 5, 21, tzinfo=WEST)]


@pytest.mark.parametrize(("value", "day"), [(value, day) for day, values in DAYS.items() for value in values])
def test_a_date_is_the_day_in_utc(value, day):
    assert usable_date(value) == day


NO_DAYS = ["yesterday", "2024-02-30", "1989-12-31", "2099-12-31T23:00:00-05:00", "9" * 400, "inf", 0, True, -1]
NO_DAYS += [99_999_999, pytest.param(10**5000, id="a number of 5001 digits"), {"year": 2024}, datetime.time(1)]
NO_DAYS += [datetime.datetime.max.replace(tzinfo=WEST)]


@pytest.mark.parametrize("value", NO_DAYS)
def test_what_is_no_day_of_these_times_is_told(value):
    with pytest.raises(ValueError, match="date is no time from 1990 to 2099"):
        usable_date(value)


def test_a_log_reads_times_as_a_date_does():
    times = ["2023-11-14 23:13:20+00", "2024-03-05T21:10", "20240305T211000Z", "2019-10-01 23:00:00 UTC", "20240305"]
    times += ["1709683200", "1709683199.9", "1709683200000", "1.7e9", " 1709683200 ", "2024-03-05 21:10:00.5-0500"]
    times += ["", "inf", "nan", "9" * 400, "soon", "5", "-1709683200", "0", "631151999", "631152000", "4102444800"]
    frame = pl.DataFrame({"time": [*times, None]})
    read = frame.select(time_column("time", pl.String())).to_series().to_list()
    assert read == [*map(read_time, times), None]
    assert [seconds is not None for seconds in read] == [True] * 11 + [False] * 9 + [True, False, False]


@pytest.mark.parametrize(
    ("role", "canonical"),
    [("User", "user"), ("HUMAN", "user"), (" Assistant ", "assistant"), ("gpt", "assistant"), ("System", "system")],
)
def test_roles_are_read_in_any_case_and_by_their_other_names(role, canonical):
    messages = [{"role": role, "content": "x"}, {"role": "user", "content": "y"}]
    assert usable_messages(messages)[0] == {"role": canonical, "content": "x"}


def test_blank_messages_are_left_out_and_the_others_stay_as_they_are():
    words = "  two\nlines | and \u00e9 "
    blank = [{"role": "system", "content": "\t"}, {"role": "assistant", "content": ""}]
    said, answer = {"role": "user", "content": words}, {"role": "assistant", "content": "Hive?"}
    assert usable_messages([blank[0], said | {"name": "x"}, blank[1], answer]) == [said, answer]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("one\r\ntwo\rthree\x85four\u2028five", "one\ntwo\nthree\nfour\nfive"),
        ("Ame\u0301lie", "Am\u00e9lie"),
        ("a\xa0b\u3000c\td", "a b c\td"),
        ("\ufeffAl\u200bien\u200e \u202eB\u00ad\x1b", "Alien B"),
        ("Fast &amp; Furious &amp;amp; &#8217; &#x200B;&lt;3", "Fast & Furious & \u2019 <3"),
        ("AT&T, Q&A; R&B &unknown; &notit; ?a=1&copy=2 &", "AT&T, Q&A; R&B &unknown; &notit; ?a=1&copy=2 &"),
        ("\u0645\u06cc\u200c\u062e \U0001f468\u200d\U0001f469", "\u0645\u06cc\u200c\u062e \U0001f468\u200d\U0001f469"),
        ("น้\u0e4d\u0e32 น\u0e4d้\u0e32 ຄ\u0ecd\u0eb2 ນ\u0ecd້\u0eb2 \u0e4d", "น้ำ น้ำ ຄຳ ນ້ຳ \u0e4d"),
        ("&amp;" * 100_000, "&" * 100_000),
        ("&" + "amp;" * 100_000, "&"),
    ],
)
def test_text_is_normalised_once_and_for_all(text, normal):
    assert normalise_text(text) == normal == normalise_text(normal)
    (message,) = usable_messages([{"role": "user", "content": text}])
    assert message["content"] == normal


NO_ITEMS = {
    "no item": [None, 17],
    "no pair": [["Hive"]],
    "no title": ["", {"year": 2000}],
    "title is no text": [{"title": 10**5000}, {"title": {"en": "Hive"}}],
    "NUL or half a character": ["H\0ive"],
    "year is no number": [["Hive", "MM"], ["Hive", 10**5000]],
    "year is not from 1000 to 2100": [["Hive", 3000], ["Hive", 2000.5], "Hive (3000)"],
}


@pytest.mark.parametrize(
    ("read", "value", "problem"),
    [
        *((usable_item, value, problem) for problem, values in NO_ITEMS.items() for value in values),
        (usable_messages, "hello", "messages are no list"),
        (usable_messages, {"role": "user", "content": "x"}, "messages are no list"),
        (usable_messages, [None], "messages are no list"),
        (usable_messages, [{"role": "narrator", "content": "x"}], "a role is 'narrator', none of"),
        (usable_messages, [{"role": "user", "content": 5}], "content is no text"),
        (usable_messages, [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "content is no text"),
        (usable_messages, [{"role": "user", "content": "x\0"}], "NUL or half a character"),
        (usable_messages, [{"role": "user", "content": " \u2003\n"}], "no words of the user"),
        (usable_messages, [{"role": "assistant", "content": "x"}], "no words of the user"),
        (usable_messages, [{"role": "user", "content": "[deleted]"}], "a message was deleted or removed"),
        (usable_messages, [*ASK, {"role": "assistant", "content": " [ Removed by Reddit ]\n"}], "removed"),
    ],
)
def test_what_is_no_item_and_what_are_no_messages_says_why(read, value, problem):
    with pytest.raises(ValueError, match=problem):
        read(value)


def test_disliked_items_are_seen_and_the_line_of_an_id_is_that_item_alone(quarantine):
    disliked = ["Go", {"id": 7}, 5, "Chess"]
    raw = {"messages": ASK, "groundtruth": ["Hive"], "user_id": Decimal(12), "seen_titles": ["Chess"]}
    (row,) = usable_rows([("f:1", raw | {"disliked_titles": disliked})], GAMES, quarantine)
    assert row["disliked_titles"] == ["Go", "Hello - Adele (2015)", "Chess"] and row["user_id"] == "12"
    assert row["seen_titles"] == ["Chess", "Go", "Hello - Adele (2015)"]
    assert [(q["source"], q["value"]) for q in quarantine.rows] == [("disliked_titles", "5")]
    (row,) = usable_rows([("f:1", raw | {"user_id": "anonymous"})], GAMES, quarantine)
    assert row["user_id"] == "", "nobody, not one person"
    for name, wrong in (("user_id", [1]), ("disliked_titles", "Go")):
        assert not [*usable_rows([("f:1", raw | {name: wrong})], GAMES, quarantine)]


def test_one_bad_item_of_several_goes_to_the_quarantine_alone(quarantine):
    raw = {"messages": ASK, "groundtruth": ["Hive", 5, ["Go", "x"]], "seen_titles": ["Chess (1475)", None]}
    (row,) = usable_rows([("f:1", raw)], GAMES, quarantine)
    assert row["groundtruth"] == [{"title": "Hive", "year": None}] and row["seen_titles"] == ["Chess"]
    assert row["conversation_id"] == row["prompt_id"] and row["date"] == ""
    assert [(q["source"], q["row"], q["value"]) for q in quarantine.rows] == [
        ("groundtruth", "f:1", "5"),
        ("groundtruth", "f:1", "['Go', 'x']"),
        ("seen_titles", "f:1", "None"),
    ]
    assert quarantine.num_read == {"conversations": 1, "groundtruth": 3, "seen_titles": 2}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"groundtruth": float("nan")}, "no ground truth"),
        ({"groundtruth": [""]}, "no ground truth"),
        ({"groundtruth": "Hive"}, "groundtruth is no list"),
        ({"seen_titles": "Chess"}, "seen_titles is no list"),
        ({"date": "3000-01-01"}, BAD_DATE),
        ({"conversation_id": ["c"]}, "conversation_id is neither text nor an integer"),
        ({"messages": ASK * 10_001}, "a conversation of more than 10,000 messages"),
        ({"messages": [{**ASK[0], "content": "x" * 500_001}] * 2}, "a conversation of more than 1,000,000 characters"),
    ],
)
def test_a_row_that_cannot_be_used_is_kept_aside_with_its_reason(change, reason, quarantine):
    good = {"messages": ASK, "groundtruth": ["Hive"]}
    assert len([*usable_rows([("f:1", good | change), ("f:2", good)], GAMES, quarantine)]) == 1
    rows = [row for row in quarantine.rows if row["source"] == "conversations"]
    assert [(row["row"], row["reason"]) for row in rows] == [("f:1", reason)]
    assert quarantine.num_read["conversations"] == 2


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "bot"]) | ANY_JSON, "content": ANY_JSON})
MESSAGES = st.just(ASK) | st.lists(MESSAGE, max_size=3) | ANY_JSON
ITEM = st.fixed_dictionaries({"title": ANY_JSON, "year": ANY_JSON | st.integers(1900, 2030)}) | ANY_JSON
FIELDS = {
    "messages": MESSAGES,
    "groundtruth": st.just(["Hive"]) | st.lists(ITEM, max_size=3) | ANY_JSON,
    "seen_titles": st.lists(ITEM, max_size=3) | ANY_JSON,
    "date": st.just("2024-03-05") | st.datetimes().map(str) | ANY_JSON,
    "conversation_id": ANY_JSON,
}


@settings(max_examples=100)
@given(st.lists(st.fixed_dictionaries({}, optional=FIELDS), max_size=4))
def test_any_row_is_either_used_or_kept_aside(raw):
    quarantine = Quarantine()
    rows = [*usable_rows([(str(number), row) for number, row in enumerate(raw)], GAMES, quarantine)]
    aside = [row["row"] for row in quarantine.rows if row["source"] == "conversations"]
    assert len(rows) + len(set(aside)) == len(rows) + len(aside) == len(raw) == quarantine.num_read["conversations"]
    for row in rows:
        json.dumps(row, ensure_ascii=False).encode()
        assert row["conversation_id"] and row["groundtruth"] and any(m["role"] == "user" for m in row["messages"])
        assert all(isinstance(title, str) and title for title in row["seen_titles"])


def test_items_may_be_given_by_their_id_or_with_the_column_that_is_part_of_their_line(quarantine):
    truths = [
        {"id": Decimal(7)},
        {"id": "8", "title": "Other"},
        {"id": "9"},
        {"title": "Hello", "year": 2015, "artist": "Adele"},
    ]
    raw = {"messages": ASK, "groundtruth": truths, "seen_titles": [{"id": "chess"}, {"id": 8}, "Hello (2015)"]}
    (row,) = usable_rows([("f:1", raw)], GAMES, quarantine, "artist")
    adele, hello = {"title": "Hello - Adele", "year": 2015}, {"title": "Hello", "year": 2015}
    assert row["groundtruth"] == [adele, hello]
    assert row["seen_titles"] == ["Chess", "Hello (2015)", "Hello"]
    (aside,) = quarantine.rows
    assert (aside["source"], aside["reason"]) == ("groundtruth", "the catalog has no item of this id")


FILMS = Catalog(make_items("Heat (1995) | Se7en (1995) = Seven | Up (2009) | The Fly (1986)"))


def _row_of(**raw):
    (row,) = usable_rows([("1", {"messages": ASK, **raw})], FILMS, Quarantine())
    return row


@pytest.mark.parametrize(
    ("truths", "titles"),
    [
        ([["Heat", 1995], ["Heat", 1995]], ["Heat"]),
        (["Seven", "Up", "Se7en (1995)"], ["Seven", "Up"]),
        ([{"id": "heat_1995"}, "HEAT (1996)"], ["Heat"]),
        (["Primer (2004)", "primer (2004)", "Primer"], ["Primer", "Primer"]),
    ],
)
def test_the_ground_truth_is_a_set_of_items(truths, titles):
    assert [item["title"] for item in _row_of(groundtruth=truths)["groundtruth"]] == titles


NAMES_FILMS = [
    {"role": "system", "content": "Say “Up”."},
    {"role": "user", "content": "I loved Heat, and the fly (1986)."},
    {"role": "assistant", "content": "Like Seven?"},
    {"role": "user", "content": "Yes!"},
]


def test_without_seen_titles_seen_is_what_the_service_finds_in_the_messages():
    left_out = _row_of(messages=NAMES_FILMS, groundtruth=["Heat"], disliked_titles=["Up"])
    assert left_out["seen_titles"] == ["Heat", "Seven", "The Fly", "Up"]
    for missing in (None, float("nan")):
        row = _row_of(messages=NAMES_FILMS, groundtruth=["Heat"], seen_titles=missing, disliked_titles=missing)
        assert row["seen_titles"] == left_out["seen_titles"][:3] and row["disliked_titles"] == []
    assert _row_of(messages=NAMES_FILMS, groundtruth=["Heat"], seen_titles=[])["seen_titles"] == []
