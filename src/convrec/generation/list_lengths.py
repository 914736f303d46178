"""Checks whether lists of catalog items fit in the maximum completion length."""

from convrec.generation.trie import CatalogTrie
from convrec.project.errors import InputError


def require_length(name: str, max_completion_length: int, trie: CatalogTrie, size: int) -> None:
    """Raise `InputError` where constrained lists of `size` items can take more tokens than the parameter allows."""
    longest = trie.longest(size)
    if longest > max_completion_length:
        raise InputError(
            f"{name} = {max_completion_length}: {size} items of the catalog can take {longest} tokens, and a "
            f"constrained list must be whole; set it to {longest} or more"
        )
