import math

import numpy as np

from convrec.classical import evidence, scores, told
from convrec.classical.crossfit import CrossFitted
from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.evidence import EVIDENCE, Evidence, log_shares
from convrec.classical.guidance import Guidance
from convrec.data.catalog import Catalog, Item
from convrec.data.conversations import person_key
from tests.rows import make_row

FILMS = [("Heat", 1995), ("Dune", 1984), ("Dune", 2021), ("Up", 2009), ("Alien", 1979)]
WORDS = ["space horror", "a heist", "desert planet", "a heist in space", "balloons"]


def _rows():
    """Rows of five people in three months; some name items, and the same person comes again."""
    rng = np.random.default_rng(4)
    rows = []
    for number in range(40):
        truths = [FILMS[i] for i in rng.permutation(5)[: rng.integers(1, 4)]]
        row = make_row(f"p{number}", truths, " ".join(rng.choice(WORDS, 2)), date=f"2022-0{rng.integers(1, 4)}-10")
        seen = [FILMS[i][0] for i in rng.permutation(5)[: rng.integers(0, 3)]]
        rows.append(row | {"user_id": f"u{number % 5}" if number % 3 else "", "seen_titles": seen})
    return rows


def _evidence(rows, catalog):
    return Evidence.fit(rows, catalog, lambda _: TfidfEmbedder(WORDS), neighbours=40, kept=5)


def _dense(term):
    return np.concatenate([block.numpy() for _, block in term.blocks()])


def test_evidence_of_a_large_catalog_is_made_of_as_few_rows_at_a_time_as_leave_room(catalog, monkeypatch):
    rows, sizes = _rows(), []
    whole = {name: _dense(term) for name, term in _evidence(rows, catalog).terms(rows).items()}
    monkeypatch.setattr(scores, "_CELLS", 2 * len(catalog))
    monkeypatch.setattr(evidence, "log_shares", lambda own, kept: sizes.append(len(own)) or log_shares(own, kept))
    for name, term in _evidence(rows, catalog).terms(rows).items():
        assert {len(block) for _, block in term.blocks()} == {2}
        np.testing.assert_allclose(_dense(term), whole[name], rtol=1e-5)
    assert set(sizes) == {2}


def test_training_prompts_are_scored_by_the_evidence_of_those_in_other_parts(catalog, tmp_path):
    rows = _rows()
    arguments = catalog, lambda _: TfidfEmbedder(WORDS)
    made = CrossFitted.fit(rows, *arguments, neighbours=40, kept=5)
    made.save(tmp_path)
    for parts in (made, CrossFitted.load(tmp_path, catalog)):
        found = {name: _dense(term) for name, term in parts.terms(rows).items()}
        assert set(found) == set(EVIDENCE)
        for place, prompt in enumerate(rows):
            others = [row for row in rows if person_key(row) % 3 != person_key(prompt) % 3]
            expected = Evidence.fit(others, *arguments, neighbours=40, kept=5).terms([prompt])
            for name in EVIDENCE:
                np.testing.assert_allclose(found[name][place], _dense(expected[name])[0], rtol=1e-4, atol=1e-5)


def test_rows_without_dates_are_parted_in_their_order(catalog):
    rows = [make_row(f"p{place}", [FILMS[place % 5]], user_id=f"u{place // 2}") for place in range(12)]
    parts = CrossFitted.fit(rows, catalog, lambda _: TfidfEmbedder(WORDS), neighbours=40, kept=5).others
    people = [[person_key(row) in own.likes.people for row in rows[::2]] for own in parts]
    assert people == [[place // 2 != part for place in range(6)] for part in range(3)]
    alone = CrossFitted.fit(rows[:2], catalog, lambda _: TfidfEmbedder(WORDS), neighbours=40, kept=5)
    assert alone.terms(rows[:1])["popularity"].shape == (1, 5), "nobody else is there"


def test_of_many_conversations_the_newest_vote_and_likes_are_those_of_all(catalog, monkeypatch):
    rows = [row | {"user_id": f"u{place}"} for place, row in enumerate(_rows())]
    newest = sorted(sorted(range(40), key=lambda place: rows[place]["date"])[-15:])
    whole, few = (_evidence([rows[place] for place in own], catalog) for own in (range(40), newest))
    monkeypatch.setattr(told, "MOST_CONVERSATIONS", 15)
    bounded = _evidence(rows, catalog)
    for kinds, expected in ((("neighbours", "encoder"), few), (("popularity", "recent", "item_knn"), whole)):
        terms, own = bounded.terms(rows, kinds), expected.terms(rows, kinds)
        for name in kinds:
            np.testing.assert_allclose(_dense(terms[name]), _dense(own[name]), rtol=1e-5)
    assert bounded.taught == few.taught


def test_recent_likes_are_of_earlier_months_and_count_less_by_month(catalog):
    dates = {"2022-01-10": FILMS[0], "2021-12-10": FILMS[3], "2022-03-01": FILMS[4]}
    rows = [make_row(f"{place}", [film], date=day) for place, (day, film) in enumerate(dates.items())]
    asked = [make_row("new", date=day) for day in ("2022-01-20", "2022-03-02", "2023-01-01", "")]
    found = _dense(_evidence(rows, catalog).terms(asked, kinds=["recent"])["recent"])
    places = [catalog.find(*film) for film in dates.values()]
    likes = np.array([[0, 1, 0], [1 / 4, 1 / 16, 0], [1 / 16, 1 / 64, 1], [1 / 16, 1 / 64, 1]])
    expected = np.log1p(likes) - np.log1p(likes).max(axis=1, keepdims=True)
    np.testing.assert_allclose(found[:, places], expected, atol=1e-6)


def test_the_short_values_of_items_are_compared_with_those_of_liked_items():
    fields = [
        {"genres": "crime, war"},
        {"genres": "war"},
        {"genres": "crime"},
        {},
        {"plot": "a long text of many words here"},
    ]
    catalog = Catalog([Item(title, 1990, own) for title, own in zip("ABCDE", fields, strict=True)])
    asked = [make_row("a", [], "hello", seen_titles=["A"]), make_row("b", [], "hello")]
    terms = _evidence(_rows(), catalog).terms(asked, kinds=["fields"])
    expected = log_shares(np.array([[1, 0.5**0.5, 0.5**0.5, 0, 0], [0] * 5]), 5).toarray()
    np.testing.assert_allclose(_dense(terms["fields"]), expected, rtol=1e-5)


def test_evidence_is_of_the_likes_of_others(catalog):
    heat, alien = FILMS[0], FILMS[4]
    rows = [
        make_row("a", [heat], "a heist", seen_titles=["Up"]),
        *(make_row(person, [alien], "space horror") for person in "bc"),
    ]
    asked = [make_row("new", [], "a heist", seen_titles=["Up"])]
    terms = {n: _dense(t)[0] for n, t in _evidence(rows, catalog).terms(asked).items()}
    np.testing.assert_allclose(terms["popularity"], np.log1p([1, 0, 0, 1, 2]) - np.log(3), atol=1e-6)
    np.testing.assert_allclose(terms["item_knn"], [math.log(1001), 0, 0, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(terms["neighbours"], [math.log(1001), 0, 0, 0, 0], rtol=1e-5)


def test_the_texts_of_items_are_compared_with_those_of_liked_items_and_with_the_words():
    items = [Item("Heat", 1995, {"genres": "crime"}), Item("Alien", 1979, {"genres": "horror space"})]
    items += [Item("Ali", 2001, {"genres": "boxing"}), Item("Solaris", 1972, {"genres": "space"})]
    catalog = Catalog([*items, Item("Thief", 1981, {"genres": "crime"})])
    asked = [
        make_row("a", [], "some space", seen_titles=["Heat", "Ali"]),
        make_row("b", [], "hello", seen_titles=["Ali"], disliked_titles=["Ali"]),
    ]
    terms = _evidence(_rows(), catalog).terms(asked, kinds=("content", "words"))
    vectors = TfidfEmbedder([item.text() for item in catalog.items]).embed_items([i.text() for i in catalog.items])
    cosines = (vectors @ vectors.T).toarray()
    expected = log_shares(np.array([cosines[0] + cosines[2], np.zeros(5)]), 5).toarray()
    np.testing.assert_allclose(_dense(terms["content"]), expected, rtol=1e-5)
    assert np.flatnonzero(_dense(terms["words"])[0]).tolist() == [1, 3] and not _dense(terms["words"])[1].any()


def test_preferred_wishes_are_counted_and_those_asked_for_weigh_more_the_fewer_items_fit():
    catalog = Catalog([Item(title, 1990, {"genres": text}) for title, text in (("A", "war"), ("B", "war, drama"))])
    said = ("a war drama", "hello", "no war", "my dad is fond of drama and war", "a drama")
    rows = [make_row(str(place), [], text) for place, text in enumerate(said)]
    rows[4]["wishes"] = []
    terms = _evidence(_rows(), catalog).terms(rows, kinds=("wishes", "asked"))
    rare = 1 + np.log(2 / 1)
    np.testing.assert_allclose(_dense(terms["asked"]), [[0.5, (1 + rare) / 2], *np.zeros((4, 2))], rtol=1e-6)
    np.testing.assert_array_equal(_dense(terms["wishes"]), [[0, 0], [0, 0], [0, 0], [1, 2], [0, 0]])
    assert not _dense(_evidence(_rows(), catalog).terms(rows[4:], kinds=("asked",))["asked"]).any()


def test_what_is_asked_for_and_particular_comes_first():
    stars = ("Ann Lee", "Eve Stone", "Zoe Hart")
    catalog = Catalog([Item(f"Film {place}", 1990, {"star": stars[place % 3]}) for place in range(6)])
    said = ("films with Eve Stone", "I like Eve Stone", "hello")
    asked = [make_row(str(place), [], text) for place, text in enumerate(said)]
    liked = [("Film 0", 1990), ("Film 4", 1990)]
    evidence = _evidence([make_row(f"x{n}", liked, "war, I like Eve Stone") for n in range(5)], catalog)
    total = _dense(Guidance(evidence, {"popularity": 1.0}, {}).total(asked))
    found = [np.argsort(-row, kind="stable")[:3].tolist() for row in total]
    assert found == [[4, 1, 0], [0, 4, 1], [0, 4, 1]]


def test_log_shares_of_the_best_are_above_that_of_the_next():
    values = np.array([[4.0, 1.0, 3.0, -5.0, 2.0], [0, 0, 0, 0, 0]])
    full = [math.log1p(1000 * share) for share in (0.4, 0.1, 0.3, 0.0, 0.2)]
    np.testing.assert_allclose(log_shares(values, 5).toarray(), [full, [0] * 5], rtol=1e-6)
    kept = [max(0, score - full[4]) for score in full]
    np.testing.assert_allclose(log_shares(values, 2).toarray(), [kept, [0] * 5], rtol=1e-6)
    assert log_shares(values, 2).nnz == 2


def test_the_encoder_learns_of_items_that_nobody_likes_by_requests_that_the_catalog_answers():
    genres = ["war", "crime", "horror", "romance"]
    catalog = Catalog([Item(f"Film {place}", None, {"genre": genres[place % 4]}) for place in range(40)])
    rows = [make_row(f"p{n}", [(f"Film {n % 20}", None)], f"some {genres[n % 4]} film") for n in range(400)]
    texts = [row["messages"][0]["content"] for row in rows]
    made = Evidence.fit(rows, catalog, lambda _: TfidfEmbedder(texts), neighbours=5, kept=40)
    scores = _dense(made.terms([make_row("q", [], "crime please")], ["encoder"])["encoder"])[0]
    best = np.argsort(-scores[20:])[:5]  # of those that nobody likes
    assert len({1, 5, 9, 13, 17} & set(best.tolist())) >= 4


def test_what_few_items_fit_or_training_does_not_teach_leads_and_what_fits_all(monkeypatch):
    genres = ["war"] * 25 + ["cooking", "cooking, war"] + ["sport"] * 73
    catalog = Catalog([Item(f"Film {place}", None, {"genre": genre}) for place, genre in enumerate(genres)])
    rows = [make_row(f"p{n}", [(f"Film {n}", None)], "cooking and war") for n in range(5)]
    made, untaught = _evidence(rows, catalog), _evidence(rows[:4], catalog)
    assert made.taught == {"cooking", "war"} and not untaught.taught
    with monkeypatch.context() as patch:
        patch.setattr(evidence, "_MOST_READ", 4)
        assert not _evidence(rows, catalog).taught
    words = "cooking and war, whatever"
    bare, named = make_row("q", [], words), make_row("r", [], words, seen_titles=["Film 3"])
    asked = make_row("s", [], "I want cooking films")
    found = _dense(made.firsts([bare, named, asked]))
    np.testing.assert_array_equal(found[:, [0, 25, 26, 99]], [[0, 4, 7, 0], [0, 0, 0, 0], [0, 8, 8, 0]])
    assert not _dense(untaught.firsts([make_row("t", [], "less war")])).any()
    others = _dense(untaught.firsts([bare, named, asked]))[:, [0, 25, 26, 99]]
    np.testing.assert_array_equal(others, [[6, 6, 15, 0], [3, 3, 6, 0], [0, 8, 8, 0]])
    guide = Guidance(made, {"popularity": 1.0}, {})
    led, fitted = (_dense(guide.total([bare, named, asked], asked_first=is_first)) for is_first in (True, False))
    np.testing.assert_allclose(led - fitted, found, atol=1e-5)
