import math

import numpy as np

from convrec.demonstrations.embedding import TfidfEmbedder
from convrec.demonstrations.reflect import reflect_scores, top_candidates
from convrec.demonstrations.remap import position_weights, remap_scores
from convrec.parsing import parse_list


def _entries(text, catalog):
    return [entry for entry in parse_list(text, catalog) if entry]


def test_remap_equals_its_formula_written_as_loops(catalog):
    texts = [item.text() for item in catalog.items]
    embedder = TfidfEmbedder(texts)
    lists = [_entries("Heat (1995)\nPrimer (2004)\nUp (2009)\nHeat (1995)", catalog), _entries("Alien", catalog), []]
    words = ["a heist film", "space horror", "desert"]
    vectors = embedder.embed(texts).toarray()
    expected = np.zeros((3, len(catalog)))
    for row, entries in enumerate(lists):
        conversation = embedder.embed([words[row]]).toarray()[0]
        for column in range(len(catalog)):
            expected[row, column] = 0.7 * conversation @ vectors[column]
            named = set()
            for rank, entry in enumerate(entries, start=1):
                if (entry.title, entry.year) in named:
                    continue
                named.add((entry.title, entry.year))
                text = texts[entry.index] if entry.index is not None else entry.title
                similarity = embedder.embed([text]).toarray()[0] @ vectors[column]
                expected[row, column] += (similarity + (entry.index == column)) / math.sqrt(rank)
    found = remap_scores(lists, words, catalog, embedder, conversation_weight=0.7)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_position_weights_are_the_inverse_root_of_the_rank(catalog):
    weights, items = position_weights([_entries("Up (2009)\nHeat (1995)", catalog), _entries("Heat (1995)", catalog)])
    assert [item.title for item in items] == ["Up", "Heat"]
    np.testing.assert_allclose(weights.toarray(), [[1, 2**-0.5], [0, 1]])


def test_reflect_adds_clipped_ratings_to_the_top_only():
    scores = np.array([[0.1, 0.5, 0.3, 0.5]], dtype=np.float32)
    assert top_candidates(scores, 2).tolist() == [[1, 3]], "ties go to the lower column"
    asked = []

    def judge(row, columns):
        asked.append((row, list(columns)))
        return [2, -9]

    found = reflect_scores(scores, 2, 0.5, judge)
    np.testing.assert_allclose(found, [[0.1, 1.5, 0.3, -0.5]], rtol=1e-6)
    assert asked == [(0, [1, 3])]


def test_embeddings_have_unit_length(catalog):
    vectors = TfidfEmbedder([item.text() for item in catalog.items]).embed(["crime and heist", "nothing known"])
    assert np.linalg.norm(vectors.toarray(), axis=1).round(6).tolist() == [1.0, 0.0]
