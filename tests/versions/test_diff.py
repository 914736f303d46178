import json
from collections import Counter

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.data.titles import normalise
from convrec.errors import InputError
from convrec.text import WIDTH, cut, listing, plain
from convrec.versions.catalog_diff import diff_catalogs
from convrec.versions.conversation_diff import diff_conversations
from convrec.versions.diff import diff

SPLITS = ("train", "validation", "test")


def _item(title, year=None, aliases=(), item_id=None, **metadata):
    made = normalise(title).replace(" ", "-") + ("" if year is None else f"_{year}")
    row = {"item_id": item_id or made, "title": title, "year": year, "aliases": list(aliases)}
    return {**row, "metadata": json.dumps(metadata)}


def _catalog(*items):
    columns = ["item_id", "title", "year", "aliases", "metadata"]
    return pd.DataFrame(items, columns=columns).astype({"year": "Int64"})


def _row(text, truths=(("Heat", 1995),), seen=(), date="2024-01-05", prompt_id=None):
    return {
        "conversation_id": "any",
        "prompt_id": prompt_id or text,
        "date": date,
        "messages": [{"role": "user", "content": text}],
        "groundtruth": [{"title": title, "year": year} for title, year in truths],
        "seen_titles": list(seen),
    }


def _rows(*rows):
    return pd.DataFrame(rows, columns=list(_row("")))


def _renamed(found):
    return [(pair.old.item_id, pair.new.item_id, pair.reason) for pair in found.renamed]


def _ids(names):
    return [name.item_id for name in names]


def test_added_and_removed_items_are_listed_by_id():
    old = _catalog(_item("Heat", 1995), _item("Zodiac", 2007), _item("Alien", 1979))
    new = _catalog(_item("Up", 2009), _item("Heat", 1995), _item("Dune"))
    found = diff_catalogs(old, new)
    assert _ids(found.added) == ["dune", "up_2009"]
    assert _ids(found.removed) == ["alien_1979", "zodiac_2007"]
    assert (found.before, found.after, found.unchanged, found.renamed, found.changed) == (3, 3, 1, (), ())


def test_one_id_under_another_title_is_renamed():
    found = diff_catalogs(_catalog(_item("Matrix, The", 1999)), _catalog(_item("The Matrix", 1999)))
    assert _renamed(found) == [("the-matrix_1999", "the-matrix_1999", "spelling")]
    assert found.renamed[0].old.title == "Matrix, The" and found.unchanged == 0


def test_an_item_that_has_only_another_id_is_the_same():
    old, new = _item("Ocean's Eleven", 2001), _item("Ocean's Eleven", 2001, item_id="ocean's-eleven_2001")
    found = diff_catalogs(_catalog(old), _catalog(new))
    assert found.is_empty and found.unchanged == 1


@pytest.mark.parametrize(("old_year", "new_year"), [(1995, 1995), (1995, 1997), (1995, None), (None, 1995)])
@pytest.mark.parametrize("side", ["old", "new"])
def test_an_item_whose_other_title_is_known_is_renamed(side, old_year, new_year):
    old = _item("Leon", old_year, ["THE PROFESSIONAL"] if side == "old" else [])
    new = _item("The Professional", new_year, ["Leon"] if side == "new" else [])
    found = diff_catalogs(_catalog(old), _catalog(new))
    assert [reason for *_, reason in _renamed(found)] == ["alias"]
    assert len(found.changed) == 1, "its aliases changed too"


def test_a_removed_item_that_is_an_alias_of_a_kept_one_was_merged():
    old = _catalog(_item("Seven", 1995), _item("Se7en", 1995), _item("Up", 2009))
    new = _catalog(_item("Seven", 1995, ["Se7en"]), _item("Up", 2009))
    found = diff_catalogs(old, new)
    assert _renamed(found) == [("se7en_1995", "seven_1995", "merged")]
    assert [change.aliases_added for change in found.changed] == [("Se7en",)]
    assert (found.removed, found.unchanged) == ((), 1)
    assert "Se7en (1995) -> Seven (1995) (merged)" in found.to_text()


def test_a_kept_item_takes_one_merged_item():
    old = _catalog(_item("Seven", 1995), _item("Se7en", 1995), _item("Se7en", 1996))
    found = diff_catalogs(old, _catalog(_item("Seven", 1995, ["Se7en"])))
    assert _renamed(found) == [("se7en_1995", "seven_1995", "merged")]
    assert _ids(found.removed) == ["se7en_1996"]


def test_a_corrected_year_is_a_renaming():
    old = _catalog(_item("Heat", 1994), _item("Up"), _item("Dune", 1984))
    new = _catalog(_item("Heat", 1995), _item("Up", 2009), _item("Dune", 2021))
    found = diff_catalogs(old, new)
    assert _renamed(found) == [("heat_1994", "heat_1995", "year"), ("up", "up_2009", "year")]
    assert (_ids(found.removed), _ids(found.added)) == (["dune_1984"], ["dune_2021"])


def test_the_same_title_comes_before_an_alias_and_an_added_item_before_a_kept_one():
    old = _catalog(_item("Heat", 1995), _item("Kept", 1995))
    new = _catalog(_item("Heat", 1996), _item("Fire", 1996, ["Heat"]), _item("Kept", 1995, ["Heat"]))
    assert _renamed(diff_catalogs(old, new)) == [("heat_1995", "heat_1996", "year")]


def test_changed_metadata_names_field_old_and_new():
    old = _catalog(_item("Heat", 1995, ["Hitze"], genres="crime", plot="A heist.", keywords="", cast="De Niro"))
    new = _catalog(_item("Heat", 1995, ["Calor"], cast="De Niro", genres="crime, drama", director="Mann"))
    (change,) = diff_catalogs(old, new).changed
    assert change.fields == {
        "director": (None, "Mann"),
        "genres": ("crime", "crime, drama"),
        "plot": ("A heist.", None),
    }
    assert (change.aliases_added, change.aliases_removed) == (("Calor",), ("Hitze",))
    assert str(change) == (
        'Heat (1995): director none -> "Mann"; genres "crime" -> "crime, drama"; plot "A heist." -> none; '
        'alias "Calor" added; alias "Hitze" removed'
    )


def test_the_order_of_fields_and_aliases_and_empty_fields_do_not_matter():
    old = _catalog(_item("Heat", 1995, ["A", "B"], x="1", y="2"))
    assert diff_catalogs(old, _catalog(_item("Heat", 1995, ["B", "A"], y="2", x="1", z=""))).is_empty


def test_a_renamed_item_with_other_metadata_is_in_both_lists():
    found = diff_catalogs(_catalog(_item("Heat", 1994, genres="x")), _catalog(_item("Heat", 1995, genres="y")))
    assert _renamed(found) == [("heat_1994", "heat_1995", "year")]
    assert found.changed[0].item.item_id == "heat_1995" and found.changed[0].fields == {"genres": ("x", "y")}


def test_a_damaged_catalog_is_named():
    with pytest.raises(InputError, match="old catalog: item_id 'heat_1995' occurs twice"):
        diff_catalogs(_catalog(_item("Heat", 1995), _item("HEAT", 1995)), _catalog())
    broken = _catalog({**_item("Heat", 1995), "metadata": "[1]"})
    with pytest.raises(InputError, match=r"new catalog: item 'heat_1995': metadata = '\[1\]' is not a JSON object"):
        diff_catalogs(_catalog(_item("Heat", 1995)), broken)


_names = st.sampled_from(["Heat", "HEAT", "Heat, The", "The Heat", "Up", "Dune", "Fire"])
_years = st.sampled_from([None, 1990, 1991, 1992, 1993, 1995])
_some_items = st.builds(
    lambda title, year, aliases, genres: _item(title, year, aliases, genres=genres),
    _names,
    _years,
    st.lists(_names, max_size=2, unique=True),
    st.sampled_from(["crime", "drama"]),
)
_catalogs = st.lists(_some_items, max_size=8, unique_by=lambda item: item["item_id"]).map(lambda rows: _catalog(*rows))


@given(_catalogs)
def test_a_catalog_does_not_differ_from_itself(catalog):
    found = diff_catalogs(catalog, catalog.sample(frac=1, random_state=0))
    assert found.is_empty and found.unchanged == len(catalog)
    assert found.to_text() == f"Catalog: {len(catalog)} items, no change"


@given(_catalogs, _catalogs)
def test_every_item_is_in_one_category(old, new):
    found = diff_catalogs(old, new)
    merged = [pair for pair in found.renamed if pair.reason == "merged"]
    own = [pair for pair in found.renamed if pair.reason != "merged"]
    changed_only = {change.item.item_id for change in found.changed} - {pair.new.item_id for pair in own}
    assert len(new) == found.after == found.unchanged + len(own) + len(changed_only) + len(found.added)
    assert len(old) == found.before == found.unchanged + len(found.renamed) + len(changed_only) + len(found.removed)
    old_ids = Counter([pair.old.item_id for pair in found.renamed] + _ids(found.removed))
    new_ids = Counter([pair.new.item_id for pair in own] + _ids(found.added))
    assert max([*old_ids.values(), *new_ids.values(), *Counter(p.new.item_id for p in merged).values()], default=1) == 1
    json.dumps(found.to_json())


def _plain_pairs(old, new):
    """Return the removed and added items that are one, by a loop over all pairs."""
    removed = [item for item in old.to_dict("records") if item["item_id"] not in set(new["item_id"])]
    added = [item for item in new.to_dict("records") if item["item_id"] not in set(old["item_id"])]
    candidates = []
    for a in removed:
        for b in added:
            known = not (pd.isna(a["year"]) or pd.isna(b["year"]))
            gap = abs(a["year"] - b["year"]) if known else 0 if pd.isna(a["year"]) and pd.isna(b["year"]) else 3
            titles = [normalise(a["title"]), normalise(b["title"])]
            alias = titles[0] in map(normalise, b["aliases"]) or titles[1] in map(normalise, a["aliases"])
            if (titles[0] == titles[1] or alias) and (gap <= 2 or not known):
                ids = [a["item_id"], b["item_id"]]
                candidates.append((gap, titles[0] != titles[1], *sorted(ids), *ids))
    pairs = []
    for *_, a, b in sorted(candidates):
        if all(a != x and b != y for x, y in pairs):
            pairs.append((a, b))
    return set(pairs)


@given(_catalogs, _catalogs)
def test_the_pairs_are_those_of_a_plain_loop(old, new):
    found = _renamed(diff_catalogs(old, new))
    assert {(a, b) for a, b, reason in found if a != b and reason != "merged"} == _plain_pairs(old, new)


@given(_catalogs, _catalogs)
def test_swapped_catalogs_swap_what_was_added_and_removed(old, new):
    there, back = diff_catalogs(old, new), diff_catalogs(new, old)

    def own(found):
        return {(pair.old.item_id, pair.new.item_id) for pair in found.renamed if pair.reason != "merged"}

    def merged(found):
        return [pair.old.item_id for pair in found.renamed if pair.reason == "merged"]

    assert own(there) == {(b, a) for a, b in own(back)}
    # What was merged into an item comes back as an addition, for the item it left was there all along.
    assert _ids(there.added) == sorted(_ids(back.removed) + merged(back))
    assert _ids(back.added) == sorted(_ids(there.removed) + merged(there))
    assert there.unchanged == back.unchanged


@given(_catalogs, _catalogs)
def test_the_order_of_rows_does_not_matter(old, new):
    shuffled = diff_catalogs(old.sample(frac=1, random_state=1), new.sample(frac=1, random_state=2))
    assert json.dumps(shuffled.to_json()) == json.dumps(diff_catalogs(old, new).to_json())


def test_rows_added_and_removed_are_counted_by_split():
    old = {"train": _rows(_row("a"), _row("b")), "test": _rows(_row("c", date="2024-02-01"))}
    new = {"train": _rows(_row("a"), _row("d", date="2024-02-02")), "test": _rows(_row("c", date="2024-02-01"))}
    found = diff_conversations(old, new)
    assert (found.new, found.gone, found.moved, list(found.splits)) == (1, 1, {}, ["train", "test"])
    train = found.splits["train"]
    assert (train.rows, train.prompts, train.added, train.removed) == ((2, 2), (2, 2), 1, 1)
    assert train.months == {"2024-01": (2, 1), "2024-02": (0, 1)}
    assert found.splits["test"].added == found.splits["test"].removed == 0


@pytest.mark.parametrize(
    "other",
    [
        _row("b"),
        _row("a", truths=[("Heat", 1996)]),
        _row("a", truths=[("Heat", None)]),
        _row("a", truths=[("Heat", 1995), ("Up", 2009)]),
        _row("a", seen=["Up"]),
        _row("a", date="2024-01-06"),
        {**_row("a"), "messages": [{"role": "assistant", "content": "a"}]},
    ],
)
def test_other_content_is_another_row(other):
    found = diff_conversations({"train": _rows(_row("a"))}, {"train": _rows(other)})
    assert (found.new, found.gone) == (1, 1)


def test_other_ids_are_no_other_row():
    found = diff_conversations({"train": _rows(_row("a"))}, {"train": _rows(_row("a", prompt_id="z"))})
    assert found.is_empty


def test_a_month_that_rolled_over_moves_its_rows():
    old = {"train": _rows(_row("a")), "validation": _rows(_row("b")), "test": _rows(_row("c"), _row("c"))}
    new = {"train": _rows(_row("a"), _row("b")), "validation": _rows(_row("c"), _row("c")), "test": _rows(_row("d"))}
    found = diff_conversations(old, new)
    assert found.moved == {("validation", "train"): 1, ("test", "validation"): 2}
    assert (found.new, found.gone) == (1, 0)
    assert found.to_json()["moved"][0] == {"from": "validation", "to": "train", "rows": 1}


def test_undated_rows_and_absent_splits_are_counted():
    found = diff_conversations({"train": _rows(_row("a", date=""), _row("b"))}, {"validation": _rows(_row("c"))})
    assert found.splits["train"].months == {"2024-01": (1, 0), "undated": (1, 0)}
    assert found.splits["validation"].rows == (0, 1)
    assert (found.new, found.gone) == (1, 2)


def test_rows_without_a_column_or_of_another_kind_are_named():
    with pytest.raises(InputError, match="new train: no such column"):
        diff_conversations({}, {"train": _rows(_row("a")).drop(columns="messages")})
    odd = _rows(_row("a"))
    odd["messages"] = "a"
    with pytest.raises(InputError, match="old test: not canonical conversations"):
        diff_conversations({"test": odd}, {})


def test_mentions_of_added_items_are_counted_in_new_rows_only():
    added = _catalog(_item("Heat", 1995, ["Hitze"]), _item("Up"))
    truths = [("HEAT", 1996), ("Hitze", None), ("Up", 2009), ("Heat", 1980), ("Alien", 1979)]
    old = {"train": _rows(_row("a", truths))}
    new = {"train": _rows(_row("a", truths), _row("a", truths), _row("b", truths=[("Alien", 1979)]))}
    found = diff_conversations(old, new, added)
    assert (found.new, found.mentions_of_added) == (2, 3)


_contents = st.builds(
    lambda text, truths, date: _row(text, truths, date=date),
    st.sampled_from(["a", "b", "c\n\u2028é"]),
    st.sampled_from([(), (("Heat", 1995),), (("Heat", None), ("Up", 2009))]),
    st.sampled_from(["", "2024-01-05"]),
)
_versions = st.dictionaries(st.sampled_from(SPLITS), st.lists(_contents, max_size=7).map(lambda rows: _rows(*rows)))


def _crossed_off(rows, others):
    """Return what is left of the rows, and of the others, when equal ones are crossed off in pairs."""
    others, left = list(others), []
    for row in rows:
        if row in others:
            others.remove(row)
        else:
            left.append(row)
    return left, others


def _content(version, split):
    rows = version[split].to_dict("records") if split in version else []
    return [[row["messages"], row["groundtruth"], row["seen_titles"], row["date"]] for row in rows]


@given(_versions, _versions)
def test_the_rows_that_differ_are_those_of_a_plain_loop(old, new):
    found = diff_conversations(old, new)
    left, come = [], []
    for split in SPLITS:
        removed, added = _crossed_off(_content(old, split), _content(new, split))
        if split in found.splits:
            assert (found.splits[split].removed, found.splits[split].added) == (len(removed), len(added))
        left += removed
        come += added
    gone, fresh = _crossed_off(left, come)
    assert (found.gone, found.new) == (len(gone), len(fresh))
    assert sum(found.moved.values()) == len(left) - len(gone)
    back = diff_conversations(new, old)
    assert (back.gone, back.new) == (found.new, found.gone)
    assert back.moved == {(b, a): rows for (a, b), rows in found.moved.items()}


@given(_versions)
def test_conversations_do_not_differ_from_themselves_in_another_order(version):
    shuffled = {name: rows.sample(frac=1, random_state=0) for name, rows in version.items()}
    assert diff_conversations(version, shuffled).is_empty


def test_frames_of_arrow_types_and_of_objects_agree(tmp_path):
    rows = _rows(_row("a", truths=[("Heat", None)]), _row("b", truths=()), _row("c", seen=["Up"]))
    rows.to_parquet(tmp_path / "rows.parquet")
    read = {"train": pd.read_parquet(tmp_path / "rows.parquet", dtype_backend="pyarrow")}
    objects = {"train": pd.read_parquet(tmp_path / "rows.parquet")}
    other_order = rows.assign(groundtruth=[[dict(reversed(t.items())) for t in row] for row in rows["groundtruth"]])
    other_order.to_parquet(tmp_path / "other.parquet")
    other = {"train": pd.read_parquet(tmp_path / "other.parquet", dtype_backend="pyarrow")}
    for version in (read, objects, other):
        assert diff_conversations({"train": rows}, version).is_empty


def test_text_lists_up_to_the_limit_within_the_width():
    old = _catalog(_item("Matrix, The", 1999), _item("Heat", 1995, plot="x" * 300))
    long = [_item("千と千尋の神隠し" * 20, 2001), _item("Sly\x1b[31m\u202egnis", 2002)]
    films = [_item(f"Film {index}", 2000) for index in range(10, 48)]
    new = _catalog(_item("The Matrix", 1999), _item("Heat", 1995, plot="y" * 300), *long, *films)
    text = diff_catalogs(old, new).to_text(limit=3)
    lines = text.split("\n")
    assert lines[0] == "Catalog: 2 -> 42 items: 40 added, 0 removed, 1 renamed, 1 changed, 0 unchanged"
    assert lines[1:6] == [
        "  added",
        "    Film 10 (2000)",
        "    Film 11 (2000)",
        "    Film 12 (2000)",
        "    ... and 37 more",
    ]
    assert lines[6:9] == ["  renamed", "    Matrix, The (1999) -> The Matrix (1999)", "  changed (plot 1)"]
    everything = diff_catalogs(old, new).to_text(limit=99)
    assert max(len(line) + sum(ord(c) > 0x2E80 for c in line) for line in everything.split("\n")) <= WIDTH
    assert not {"\x1b", "\u202e"} & set(everything)


def test_conversations_as_text():
    old = {"train": _rows(_row("a")), "test": _rows(_row("b", date="2024-02-01"))}
    new = {"train": _rows(_row("a"), _row("b", date="2024-02-01")), "test": _rows(_row("c", date="2024-03-01"))}
    assert diff_conversations(old, new).to_text() == "\n".join(
        [
            "Conversations: 2 -> 3 rows: 1 new, 0 gone, 1 moved to another split",
            "  moved",
            "    test -> train: 1",
            "  split                            rows      added    removed                prompts",
            "  train                          1 -> 2          1          0                 1 -> 2",
            "  test                           1 -> 1          1          1                 1 -> 1",
            "  months with more or fewer rows",
            "    2024-02 train: 0 -> 1",
            "    2024-02 test: 1 -> 0",
            "    2024-03 test: 0 -> 1",
        ]
    )


def test_terminal_text_is_one_line_of_harmless_characters():
    assert plain(" a\n\tb\u2028c\x1b[0m\ud800") == "a b c\N{REPLACEMENT CHARACTER}[0m\N{REPLACEMENT CHARACTER}"
    assert cut("abcd", 4) == "abcd" and cut("abcde", 4) == "abc…"
    assert listing("heading", [], 3) == []
    assert listing("heading", ["a", "b"], 0) == ["  heading", "    ... and 2 more"]


def test_two_folders_are_compared_as_a_whole(tmp_path):
    for name, items, rows in [
        ("old", [_item("Heat", 1995)], [_row("a")]),
        ("new", [_item("Heat", 1995), _item("Up", 2009)], [_row("a"), _row("b", truths=[("Up", 2009)])]),
    ]:
        (tmp_path / name).mkdir()
        _catalog(*items).to_parquet(tmp_path / name / "catalog.parquet")
        _rows(*rows).to_parquet(tmp_path / name / "train.parquet")
    found = diff(str(tmp_path / "old"), str(tmp_path / "new"))
    assert _ids(found.catalog.added) == ["up_2009"]
    assert (found.conversations.new, found.conversations.mentions_of_added) == (1, 1)
    text = found.to_text().split("\n")
    assert "Catalog: 1 -> 2 items: 1 added, 0 removed, 0 renamed, 0 changed, 1 unchanged" in text
    assert "  the ground truth of new rows names added items 1 time" in text
    assert list(found.to_json()) == ["old", "new", "catalog", "conversations", "not_compared"]
    same = diff(str(tmp_path / "old"), str(tmp_path / "old"))
    assert same.is_empty and len(same.to_text().split("\n")) == 1 and "no change" in same.to_text()


def test_what_only_one_version_has_is_said(tmp_path):
    _catalog(_item("Heat", 1995)).to_parquet(tmp_path / "catalog.parquet")
    _catalog(_item("Heat", 1995)).to_parquet(tmp_path / "other.parquet")
    _rows(_row("a")).to_parquet(tmp_path / "train.parquet")
    found = diff(str(tmp_path), str(tmp_path / "other.parquet"))
    assert found.not_compared == ("conversations",) and found.conversations is None and found.is_empty
    assert "only one version has it: conversations" in found.to_text()
    with pytest.raises(InputError, match="train.parquet has only conversations.*nothing to compare"):
        diff(str(tmp_path / "train.parquet"), str(tmp_path / "other.parquet"))
