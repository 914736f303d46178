import logging

import numpy as np
import pytest

from convrec.data.catalog import Catalog
from convrec.generation.constraint import catalog_trie
from convrec.generation.list_lengths import SAMPLE, list_lengths, require_length, warn_if_cut
from convrec.project.errors import InputError
from tests.generation.vocabularies import FILMS, embedded

CATALOG = Catalog([item for item in FILMS if str(item).isascii()])


def test_lengths_are_those_of_whole_lists_with_their_end():
    """Each of these titles is a token, and so is each year, with its newline or not."""
    dated = Catalog([item for item in CATALOG.items if item.year is not None])
    lengths = list_lengths(dated, embedded(), 5)
    assert lengths.shape == (SAMPLE,) and np.unique(lengths).tolist() == [2 * 5 + 1]
    assert list_lengths(dated, embedded(), 100).max() == 2 * len(dated) + 1


@pytest.mark.parametrize(("length", "warned"), [(11, False), (9, True)])
def test_lists_that_would_be_cut_are_told(length, warned, caplog):
    dated = Catalog([item for item in CATALOG.items if item.year is not None])
    with caplog.at_level(logging.WARNING):
        warn_if_cut("evaluate.max_completion_length", length, dated, embedded(), 5)
    message = (
        "evaluate.max_completion_length = 9: 100.0 % of random lists of 5 catalog items take more tokens (up to 11), "
        "and would be cut; set it to 32 or more"
    )
    assert [record.getMessage() for record in caplog.records] == [message] * warned


def test_constrained_lists_that_cannot_be_whole_are_refused():
    trie = catalog_trie(CATALOG, embedded())
    longest = trie.longest(5)
    require_length("rank_grpo.max_completion_length", longest, trie, 5)
    with pytest.raises(InputError, match=f"rank_grpo.max_completion_length = {longest - 1}: .* set it to {longest} or"):
        require_length("rank_grpo.max_completion_length", longest - 1, trie, 5)
