"""The strict reading, of lists that are rewarded or scored: only a whole title names an item."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.data import parsing
from convrec.data.catalog import Catalog
from convrec.data.matching import Truth, relevance
from convrec.data.parsing import Entry, parse_line, parse_list, read_list
from convrec.data.sources.synthetic import embedded_catalog
from convrec.data.titles import fold
from tests.rows import list_quality, make_items

FILMS = make_items(
    "Heat (1995) | The Hunger Games (2012) | 2001: A Space Odyssey (1968) | 3 Women (1977) | "
    "Amelie (2001) = Le fabuleux destin d'Amélie Poulain | *batteries not included (1987) | Chess | [Rec]² (2007) | "
    "'71 (2014) | 9 (2009)"
)
CATALOG = Catalog(FILMS)
EMBEDDED = embedded_catalog()

INVENTED = [
    "{title}: The Zqx Vorn ({year})", "{title} - Zqx ({year})", "{title} (Zqx) ({year})", "{title} by Zqx ({year})",
    "Zqx Vorn ({title}) ({year})", "{title}, Zqx ({year})", "{title} | Zqx ({year})", "{title} <Zqx> ({year})",
    "[{title}](Zqx) ({year})", "{title} aka Zqx ({year})", "Zqx aka {title} ({year})", "**{title}** Zqx ({year})",
    "“{title}”: Zqx ({year})", "Zqx: {title} ({year})", "{title} - a zqx vorn", "{title}: zqx",
    "{title} directed by Zqx", "I recommend {title} ({year})", "{title} (Zqx {year})", "{title} (zqx)",
    "Zqx {title} ({year})",
]  # fmt: skip
MARKED = [
    "{}", "  {}  ", "{n}. {}", "{n}) {}", "({n}) {}", "#{n}. {}", "{n}: {}", "{n} - {}", "{n}\\. {}", "- {}",
    "* {}", "• {}", "- {n}. {}", "* **{}**", "**{}**", "*{}*", "***{}***", "__{}__", "_{}_", "`{}`", "'{}'", '"{}"',
    "“{}”", "«{}»", "{n}. “{}”", "**{n}. {}**", "**{n}.** {}", "{n}. **{}**", "<b>{}</b>", "{},", '"{}",',
]  # fmt: skip


HEAT_OF_1995 = ["\ufeff1. Heat\u200e (1995)\r", "&quot;Heat&quot;&nbsp;(1995)", "3. **Heat** (1995) - tense"]
HEAT_OF_1995 += ["“Heat” (1995): cops, robbers", "Heat (1995, Michael Mann), from Mann", "Heat (1995–1996)"]
HEAT_OF_1995 += ["Heat (1995-1999) (TV Series)", "**Heat (1995)(TV)**", "Heat (1995) (1995)"]
WHOLE = ["Heat (TV Series 1995– )", "(1995) Heat", "Chess (3000)"]


@pytest.mark.parametrize(
    ("line", "title", "year", "known"),
    [
        *((line, "Heat", 1995, "Heat") for line in HEAT_OF_1995),
        *((line, line, None, None) for line in WHOLE),
        ("heat  (1996)", "heat", 1996, "Heat"),
        ("2. heat (1995-present)", "heat", 1995, "Heat"),
        ("1. LE FABULEUX destin d'Amélie Poulain (2001)", "LE FABULEUX destin d'Amélie Poulain", 2001, "Amelie"),
        ("4. 2001: A Space Odyssey (1968)", "2001: A Space Odyssey", 1968, "2001: A Space Odyssey"),
        ("**2. *batteries not included (1987)**", "*batteries not included", 1987, "*batteries not included"),
        ("Heat (1999)", "Heat", 1999, None),
        ("Heat (1986) (1995)", "Heat (1986)", 1995, None),
        ("Heat (1995) (2001)", "Heat (1995)", 2001, None),
        ("Title: Heat (1995)", "Title: Heat", 1995, None),
        ("The Hunger Games: Catqhing Fire (2013)", "The Hunger Games: Catqhing Fire", 2013, None),
        ("Rec 2 (2007)", "Rec 2", 2007, None),
    ],
)
def test_one_line(line, title, year, known):
    entry = parse_line(line, CATALOG)
    assert entry == Entry(title, year, None if known is None else [item.title for item in FILMS].index(known))


@pytest.mark.parametrize("form", INVENTED)
def test_an_invented_title_names_no_item(form):
    lines = [form.format(title=item.title, year=item.year) for item in EMBEDDED.items]
    truths = [Truth(item.title, item.year) for item in EMBEDDED.items]
    assert not [str(entry) for entry in parse_list("\n".join(lines), EMBEDDED) if entry.index is not None]
    for line, truth in zip(lines, truths, strict=True):
        assert relevance(line, [truth], [], EMBEDDED, 1, "reward") == [0]
        assert list_quality(line, [], EMBEDDED, 1)["in_catalog"] == 0


@pytest.mark.parametrize("form", MARKED)
def test_a_title_in_list_marks_names_its_item(form):
    lines = [form.format(item, n=number % 20 + 1) for number, item in enumerate(EMBEDDED.items)]
    assert [entry and entry.index for entry in parse_list("\n".join(lines), EMBEDDED)] == list(range(len(EMBEDDED)))


LETTERS = st.text(st.characters(categories=["L"]), min_size=1, max_size=12)
EDITS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3), LETTERS), min_size=1, max_size=3)


@given(st.sampled_from(EMBEDDED.items), EDITS)
def test_letters_within_a_title_make_it_another_title(item, edits):
    """Each edit puts letters at a place of the title, in place of 0 to 3 characters."""
    title = item.title
    for at, removed, letters in edits:
        title = title[:at] + letters + title[at + removed :]
    same = [index for index, other in enumerate(EMBEDDED.items) if fold(other.title) == fold(title)]
    for form in ("{} ({})", "7. **{}** ({}) - a classic"):
        entry = parse_line(form.format(title, item.year), EMBEDDED)
        assert entry is not None and (entry.index is None or entry.index in same)


def test_a_plain_line_of_no_item_is_not_read_further(monkeypatch):
    """Rollouts of a model that does not know the catalog consist of such lines."""
    monkeypatch.setattr(parsing, "parse_line", None)
    written = read_list("Zqx: Vorn (1999)\nHeat (1995)\nheat 2 (2001)", CATALOG)
    assert written.others == [("zqx: vorn", "1999"), ("heat 2", "2001")]
