import numpy as np
import pytest
from scipy import sparse

from convrec.data.parsing import parse_line
from convrec.demonstrations.grounding import Grounder
from convrec.demonstrations.quality import PLACED_BY, check_demonstrations, match_shares, placed_by, popularity
from convrec.demonstrations.remap import position_weights
from convrec.project.errors import InputError

WRONG = ["Heat (1995)", "Heat (1995)\nUp (2009)\nAlien (1979)", "Heat (1995)\nUp", "1. Heat (1995)\n2. Up (2009)"]
WRONG += ["Heat (1995)\nHeat (1995)", "Heat (1995)\nDune (1984)"]


@pytest.mark.parametrize("text", WRONG)
def test_a_demonstration_is_exactly_n_unseen_catalog_lines(catalog, text):
    rows = [{"prompt_id": "p", "seen_titles": ["dune"]}]
    check_demonstrations(["Heat (1995)\nUp (2009)"], rows, catalog, 2)
    with pytest.raises(InputError, match="prompt p: it is no list of common.list_length = 2"):
        check_demonstrations([text], rows, catalog, 2)


def test_titles_are_counted_by_mention_before_and_after_matching(catalog):
    texts = [
        "Heat (1995)\nUp! (2009)\nPrimer (2004)",
        "Heat (1995)\nDune\nAlien: The Zqx (1979)\nUp: Up Again (2011)\nUp",
    ]
    lists = [[parse_line(line, catalog, reading="lenient") for line in text.split("\n")] for text in texts]
    shares = match_shares(position_weights(lists, Grounder(catalog)))
    kinds = {"exact": 4 / 8, "normalised": 1 / 8, "fuzzy": 0, "truncated": 1 / 8}
    assert shares == {"mentions": 8, "before": 3 / 8, "after": 6 / 8, **kinds}


def test_what_the_teacher_did_not_name_and_reflect_did_not_place_was_placed_by_what_others_liked():
    exact, semantic = PLACED_BY.index("exact"), PLACED_BY.index("semantic")
    sources = np.array([[exact, semantic, semantic, exact]])
    found = placed_by(sources, np.array([[7, 1, 8, 2]]), np.array([[1, 2, 3, 4]]))
    assert [PLACED_BY[kind] for kind in found[0]] == ["exact", "semantic", "collaborative", "exact"]


def test_popularity_by_bucket_and_its_distance_to_the_ground_truth():
    positives = sparse.csr_array(np.array([[2, 1, 0, 0], [2, 1, 0, 0]]))
    rows, distances = popularity(positives, {"same": np.array([[0, 0, 1]]), "other": np.array([[3, 3, -1]])})
    assert [row["ground_truth"] for row in rows] == [4 / 6, 2 / 6, 0, 0]
    assert [row["other"] for row in rows] == [0, 0, 0, 1]
    assert distances == {"same": pytest.approx(0), "other": pytest.approx(1)}
