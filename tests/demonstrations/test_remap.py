import math

import numpy as np
import pytest

from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.scores import top_items
from convrec.data.parsing import parse_list
from convrec.demonstrations.grounding import Grounder
from convrec.demonstrations.remap import SOURCES, position_weights, remap


class DenseEmbedder(TfidfEmbedder):
    """The same vectors as rows of a dense matrix, as sentence models give them."""

    def embed_items(self, texts):
        return super().embed_items(texts).toarray()


@pytest.fixture
def embedder(catalog):
    return TfidfEmbedder([item.text() for item in catalog.items])


def _entries(text, catalog):
    return [entry for entry in parse_list(text, catalog) if entry]


@pytest.mark.parametrize("embedder_type", [TfidfEmbedder, DenseEmbedder])
def test_remap_equals_its_formula_written_as_loops(catalog, embedder, embedder_type):
    texts = [item.text() for item in catalog.items]
    answers = ["Heat (1995)\nPrimer (2004)\nUp! (2009)\nHeat (1995)", "Dune\nA film with a heist", ""]
    lists = [_entries(answer, catalog) for answer in answers]
    words = ["a heist film", "space horror", "desert"]
    named = {"Heat": [0], "Up!": [3], "Dune": [1, 2]}

    def vector(text):
        return embedder.embed_items([text]).toarray()[0]

    vectors = [vector(text) for text in texts]
    expected = np.zeros((3, len(catalog)))
    for row, entries in enumerate(lists):
        for column in range(len(catalog)):
            expected[row, column] = vector(words[row]) @ vectors[column]
            used = set()
            for rank, entry in enumerate(entries, start=1):
                if (entry.title, entry.year) in used:
                    continue
                used.add((entry.title, entry.year))
                items = named.get(entry.title, [])
                text = texts[items[0]] if items else {"Primer": "Primer (2004)"}.get(entry.title, entry.title)
                score = vector(text) @ vectors[column] + (column in items) / max(1, len(items))
                expected[row, column] += score / math.sqrt(rank)
    remapped = remap(iter(lists), words, catalog, embedder_type(texts), Grounder(catalog))
    np.testing.assert_allclose(remapped.scores.block(slice(0, 3)).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_what_is_outside_the_catalog_is_described_once(catalog, embedder):
    asked = []

    def describe(entries):
        asked.append([entry.title for entry in entries])
        return ["a film in the desert" for _ in entries]

    lists = [_entries("Primer (2004)\nHeat (1995)", catalog), _entries("Primer (2004)", catalog)]
    remapped = remap(lists, ["", ""], catalog, embedder, Grounder(catalog), describe=describe)
    assert asked == [["Primer"]]
    top, _ = top_items(remapped.scores, 2, [[], []])
    assert set(top[1].tolist()) == {1, 2}, "the two films in the desert"


def test_the_source_is_the_match_of_the_earliest_rank_that_named_the_item(catalog, embedder):
    lists = [_entries("Primer (2004)\nUp! (2009)\nUp (2009)\nHeat! (1995)", catalog), _entries("Alien", catalog), []]
    remapped = remap(lists, [""] * 3, catalog, embedder, Grounder(catalog))
    everything = np.tile(np.arange(len(catalog)), (3, 1))
    sources = [[SOURCES[kind] for kind in row] for row in remapped.sources.of(everything).tolist()]
    assert sources == [
        ["normalised", "semantic", "semantic", "normalised", "semantic"],
        ["semantic", "semantic", "semantic", "semantic", "exact"],
        ["semantic"] * 5,
    ]


def test_an_item_that_is_repeated_in_another_spelling_counts_once(catalog, embedder):
    grounder = Grounder(catalog)
    lists = [_entries("Heat (1995)\nUp (2009)\nHEAT\nheat! (1995)\nHeat (1994)", catalog), _entries("HEAT", catalog)]
    teacher = position_weights(lists, grounder)
    np.testing.assert_allclose(teacher.weights.sum(axis=1), [1 + 2**-0.5, 1])
    named = [
        remap([entries], [""], catalog, embedder, grounder).scores.block([0]).numpy()[0, 0]
        for entries in (lists[0], lists[0][:2])
    ]
    assert named[0] == pytest.approx(named[1])
