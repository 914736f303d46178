import math
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import numpy as np
import pytest
from scipy import sparse

from convrec.classical import evidence, scores
from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.evidence import COLLABORATIVE, EVIDENCE, Evidence, log_shares
from convrec.classical.scores import sparse_scores
from convrec.data.catalog import Catalog, Item
from convrec.demonstrations.steps import combine
from tests.rows import make_row

FILMS = [("Heat", 1995), ("Dune", 1984), ("Dune", 2021), ("Up", 2009), ("Alien", 1979)]
WORDS = ["space horror", "a heist", "desert planet", "a heist in space", "balloons"]


def _rows():
    """Rows of five people in three months; some name items, and the same person comes again."""
    rng = np.random.default_rng(4)
    rows = []
    for number in range(40):
        truths = [FILMS[i] for i in rng.permutation(5)[: rng.integers(1, 4)]]
        rows.append(
            make_row(
                f"p{number}",
                truths,
                " ".join(rng.choice(WORDS, 2)),
                user_id=f"u{number % 5}" if number % 3 else "",
                date=f"2022-0{rng.integers(1, 4)}-10",
                seen_titles=[FILMS[i][0] for i in rng.permutation(5)[: rng.integers(0, 3)]],
            )
        )
    return rows


def _evidence(rows, catalog, kept=5):
    return Evidence.fit(rows, catalog, lambda _: TfidfEmbedder(WORDS), neighbours=len(_rows()), kept=kept)


def _dense(term):
    return np.concatenate([block.numpy() for _, block in term.blocks()])


def test_evidence_of_a_large_catalog_is_made_of_as_few_rows_at_a_time_as_leave_room(catalog, monkeypatch):
    rows, sizes = _rows(), []
    asked = {"without_own": True, "earlier": False}
    whole = {name: _dense(term) for name, term in _evidence(rows, catalog).terms(rows, **asked).items()}
    monkeypatch.setattr(scores, "_CELLS", 2 * len(catalog))
    monkeypatch.setattr(evidence, "log_shares", lambda own, kept: sizes.append(len(own)) or log_shares(own, kept))
    for name, term in _evidence(rows, catalog).terms(rows, **asked).items():
        assert {len(block) for _, block in term.blocks()} == {2}
        np.testing.assert_allclose(_dense(term), whole[name], rtol=1e-5)
    assert set(sizes) == {2}


@pytest.mark.parametrize(("without_own", "earlier"), [(False, False), (True, False), (True, True)])
def test_what_is_left_out_counts_as_if_it_had_never_been(catalog, without_own, earlier):
    rows = _rows()
    terms = _evidence(rows, catalog).terms(rows, without_own=without_own, earlier=earlier)
    assert set(terms) == set(EVIDENCE)
    found = {name: _dense(term) for name, term in terms.items()}
    for place, prompt in enumerate(rows):
        person, month = prompt["user_id"] or prompt["conversation_id"], prompt["date"][:7]
        others = [
            row
            for row in rows
            if not (without_own and (row["user_id"] or row["conversation_id"]) == person)
            and not (earlier and row["date"][:7] >= month)
        ]
        if not others:
            assert all(not found[name][place].any() for name in COLLABORATIVE)
            continue
        expected = _evidence(others, catalog).terms([prompt], without_own=False, earlier=False)
        for name in sorted(set(EVIDENCE) - ({"encoder"} if earlier else set())):
            np.testing.assert_allclose(found[name][place], _dense(expected[name])[0], rtol=1e-4, atol=1e-5)


def test_evidence_is_of_the_likes_of_others(catalog):
    heat, alien = FILMS[0], FILMS[4]
    rows = [
        make_row("a", [heat], "a heist", seen_titles=["Up"]),
        *(make_row(person, [alien], "space horror") for person in "bc"),
    ]
    asked = [make_row("new", [], "a heist", seen_titles=["Up"])]
    terms = {n: _dense(t)[0] for n, t in _evidence(rows, catalog).terms(asked, without_own=True, earlier=False).items()}
    np.testing.assert_allclose(terms["popularity"], np.log1p([1, 0, 0, 1, 2]), rtol=1e-5)
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
    terms = _evidence(_rows(), catalog).terms(asked, without_own=False, earlier=False, kinds=("content", "words"))
    vectors = TfidfEmbedder([item.text() for item in catalog.items]).embed_items([i.text() for i in catalog.items])
    cosines = (vectors @ vectors.T).toarray()
    expected = log_shares(np.array([cosines[0] + cosines[2], np.zeros(5)]), 5).toarray()
    np.testing.assert_allclose(_dense(terms["content"]), expected, rtol=1e-5)
    assert np.flatnonzero(_dense(terms["words"])[0]).tolist() == [1, 3] and not _dense(terms["words"])[1].any()


def test_preferred_wishes_are_counted():
    catalog = Catalog([Item(title, 1990, {"genres": text}) for title, text in (("A", "war"), ("B", "war, drama"))])
    asked = [make_row("a", [], "a war drama"), make_row("b", [], "hello"), make_row("c", [], "no war")]
    asked += [make_row("d", [], "a drama") | {"wishes": []}]
    evidence = _evidence(_rows(), catalog)
    for rows, wanted in ((asked, [[1, 2], [0, 0], [0, 0], [0, 0]]), (asked[1:], np.zeros((3, 2)))):
        terms = evidence.terms(rows, without_own=False, earlier=False, kinds=("wishes",))
        np.testing.assert_array_equal(_dense(terms["wishes"]), wanted)


def test_log_shares_of_the_best_are_above_that_of_the_next():
    values = np.array([[4.0, 1.0, 3.0, -5.0, 2.0], [0, 0, 0, 0, 0]])
    full = [math.log1p(1000 * share) for share in (0.4, 0.1, 0.3, 0.0, 0.2)]
    np.testing.assert_allclose(log_shares(values, 5).toarray(), [full, [0] * 5], rtol=1e-6)
    kept = [max(0, score - full[4]) for score in full]
    np.testing.assert_allclose(log_shares(values, 2).toarray(), [kept, [0] * 5], rtol=1e-6)
    assert log_shares(values, 2).nnz == 2


def _grounded(prompts, catalog):
    none = sparse.csr_array((len(prompts), len(catalog)), dtype=np.float32)
    scores, reflected = SimpleNamespace(scores=sparse_scores(none, "cpu")), SimpleNamespace(ratings=none)
    return SimpleNamespace(prompts=prompts, closed=[[]] * len(prompts), remapped=scores, reflected=reflected)


@pytest.mark.parametrize(
    ("train", "validation", "earlier"),
    [
        (["2022-02-10", "2022-03-31"], ["2022-04-01"], True),
        (["2022-02-10", "2022-04-07"], ["2022-04-14", "2022-04-08"], True),  # within one month
        (["2022-02-10", "2022-04-08"], ["2022-04-08", "2022-04-09"], False),
        (["2022-02-10", "2022-05-01"], ["2022-04-08"], False),
        (["2022-02-10", ""], ["2022-04-08"], False),
        (["2022-02-10", "2022-03-31"], ["2022-04-08", ""], False),
    ],
)
def test_later_months_are_no_evidence_where_training_is_before_validation(catalog, train, validation, earlier):
    dates = {"train": train, "validation": validation * 3}
    rows = {name: [make_row(f"{name}{n}", date=day) for n, day in enumerate(days)] for name, days in dates.items()}
    grounded = {name: _grounded(split, catalog) for name, split in rows.items()}
    asked = MagicMock(**{"terms.return_value": {}})
    positives = sparse.csr_array((len(train), len(catalog)), dtype=np.float32)
    combine(grounded, rows, positives, np.arange(0), asked, 3, "cpu")
    of_train = call(rows["train"], without_own=True, earlier=earlier, kinds=COLLABORATIVE)
    of_validation = call(rows["validation"], without_own=False, earlier=False, kinds=COLLABORATIVE)
    assert asked.terms.mock_calls == [of_train, of_validation]
