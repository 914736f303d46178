import pytest

from convrec.data.catalog import Catalog
from convrec.generation.list_lengths import require_length
from convrec.generation.trie import catalog_trie
from convrec.project.errors import InputError
from tests.generation.vocabularies import FILMS, embedded

CATALOG = Catalog([item for item in FILMS if str(item).isascii()])


def test_constrained_lists_that_cannot_be_whole_are_refused():
    trie = catalog_trie(CATALOG, embedded())
    longest = trie.longest(5)
    require_length("rank_grpo.max_completion_length", longest, trie, 5)
    with pytest.raises(InputError, match=f"rank_grpo.max_completion_length = {longest - 1}: .* set it to {longest} or"):
        require_length("rank_grpo.max_completion_length", longest - 1, trie, 5)
