"""Checks whether lists of catalog items fit in the maximum completion length."""

import logging
from typing import Any

import numpy as np

from convrec.data.catalog import Catalog
from convrec.data.parsing import format_list
from convrec.generation.constraint import CatalogTrie
from convrec.project.errors import InputError

logger = logging.getLogger(__name__)

SAMPLE = 1000  # lists
_FITS = 0.999  # of the lists, in the length that is proposed


def list_lengths(catalog: Catalog, tokenizer: Any, size: int) -> np.ndarray:
    """Return the tokens, EOS included, of `SAMPLE` lists of `size` items that are drawn at random. Shape: (SAMPLE,)."""
    rng = np.random.default_rng(0)
    size = min(size, len(catalog))
    lists = (rng.choice(len(catalog), size, replace=False) for _ in range(SAMPLE))
    texts = [format_list([str(catalog.items[i]) for i in chosen]) for chosen in lists]
    return np.array([len(ids) + 1 for ids in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]])


def warn_if_cut(name: str, max_completion_length: int, catalog: Catalog, tokenizer: Any, size: int) -> None:
    """Warn where some lists of `size` items take more tokens than the parameter `name` allows."""
    lengths = list_lengths(catalog, tokenizer, size)
    share = float((lengths > max_completion_length).mean())
    if share:
        logger.warning(
            "%s = %d: %.1f %% of random lists of %d catalog items take more tokens (up to %d), and would be cut; "
            "set it to %d or more",
            name,
            max_completion_length,
            100 * share,
            size,
            lengths.max(),
            int(np.ceil(np.quantile(lengths, _FITS) / 32)) * 32,
        )


def require_length(name: str, max_completion_length: int, trie: CatalogTrie, size: int) -> None:
    """Raise `InputError` where constrained lists of `size` items can take more tokens than the parameter allows."""
    longest = trie.longest(size)
    if longest > max_completion_length:
        raise InputError(
            f"{name} = {max_completion_length}: {size} items of the catalog can take {longest} tokens, and a "
            f"constrained list must be whole; set it to {longest} or more"
        )
