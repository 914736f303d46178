import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from convrec.classical.scores import sparse_scores
from convrec.demonstrations.reflect import parse_ratings, reflect

NONE = float("nan")


@pytest.mark.parametrize(
    ("text", "ratings"),
    [
        ("1: 2\n2: -1\n3: 0", [2, -1, 0]),
        ("3: 1\n1: 2", [2, NONE, 1]),
        ("1. Heat (1995): +2\n2. Apollo 13: -1\n3. Iron Man 2", [2, -1, NONE]),
        ("1. 2 Fast 2 Furious: -1\n2. 2012 (2009): 1\n3. 2012 (2009)", [-1, 1, NONE]),
        ("[2, 1, -2]", [2, 1, -2]),
        ("2\n1\n-2", [2, 1, -2]),
        ('{"1": 2, "2": -1, "3": 0}', [2, -1, 0]),
        ('```json\n{\n "1": 2,\n "2": −1\n}\n```', [2, -1, NONE]),
        ("| 1 | Heat | 1 |\n| 2 | Up | -2 |", [1, -2, NONE]),
        ("**1**: +2\n2: 1, because 12 Angry Men\n3: 2/2", [2, 1, 2]),
        ("1: 5\n2: nice\n3: 1.0\n7: 2", [NONE, NONE, 1]),
        ("Candidate 1: 2\nCandidate 2: 0 - unsure", [2, 0, NONE]),
        ("1: 2\n1: -2", [2, NONE, NONE]),
        ("1: 2 - matches: 1 of the best\n2: -1 because: 2", [2, -1, NONE]),
        ("1: " + "9" * 5_000 + "\n2: -" + "1" * 5_000 + "\n3: 1", [NONE, NONE, 1]),
        ("I would rate all of them 2.", [NONE, NONE, NONE]),
        ("", [NONE, NONE, NONE]),
    ],
)
def test_ratings_as_judges_write_them(text, ratings):
    np.testing.assert_array_equal(parse_ratings(text, 3), ratings)


@given(st.text(alphabet="12-+.: ,[]{}\n\"'|abc*", max_size=200), st.integers(0, 5))
def test_whatever_a_judge_writes_the_ratings_are_in_range_or_missing(text, count):
    ratings = parse_ratings(text, count)
    assert ratings.shape == (count,)
    assert all(np.isnan(rating) or rating in (-2, -1, 0, 1, 2) for rating in ratings.tolist())


@given(st.lists(st.integers(-2, 2), min_size=2, max_size=100))
def test_the_format_that_is_asked_for_is_read_back(ratings):
    text = "\n".join(f"{number}: {rating}" for number, rating in enumerate(ratings, start=1))
    assert parse_ratings(text, len(ratings)).tolist() == ratings


def test_reflect_adds_ratings_to_the_candidates_only_and_counts_those_missing():
    values = np.array([[0.1, 0.5, 0.3, 0.5], [1, 2, 3, 4]], dtype=np.float32)
    candidates = np.array([[1, 3], [2, -1]])
    asked = []

    def judge(rated):
        asked.append(rated)
        return np.array([[2, -9], [NONE, NONE]], dtype=np.float32)

    reflected = reflect(sparse_scores(sparse.csr_array(values)), candidates, judge)
    np.testing.assert_allclose(reflected.scores.block([0, 1]), [[0.1, 1.5, 0.3, -0.5], [1, 2, 3, 4]], rtol=1e-6)
    assert (reflected.asked, reflected.missing) == (3, 1), "a place without a candidate asks for nothing"
    assert asked[0] is candidates
