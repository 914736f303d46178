"""Item tokens: one token for each catalog line, so that a list of N items is N tokens and an EOS, for any model."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from scipy.sparse import linalg

from convrec.data.catalog import Catalog
from convrec.generation.export import write_model
from convrec.generation.line_tokens import add_tokens, item_token, item_tokens
from convrec.generation.pretrained import load_model, load_tokenizer

logger = logging.getLogger(__name__)

_MOST_DIRECTIONS = 256  # of co-occurrence


def add_item_tokens(model: Any, tokenizer: Any, catalog: Catalog, likes: sparse.csr_array | None = None) -> int:
    """Add a token for each catalog line that has none, and rows for them to the model's embeddings, in place.

    A new row is the mean row plus the item's direction, with the usual distance from the mean. The mean is that of the
    item tokens that are there already, or of all tokens. The direction is that of the mean row of the tokens of the
    item's line and metadata, in which rarer tokens weigh more, relative to all items; where there are likes, a
    co-occurrence vector (`co_occurrence_vectors`) is added. Input and output embeddings get their own rows, unless
    they are tied. All other rows stay as they are.

    Shape: likes (people, C), binary. Returns the number of new tokens.
    """
    lines = [str(item) for item in catalog.items]
    metadata = [", ".join(item.metadata.values()) for item in catalog.items]
    shares = _token_shares(lines, tokenizer) + _token_shares(metadata, tokenizer)
    known = list(item_tokens(tokenizer).values()) or list(range(shares.shape[1]))
    new = add_tokens(tokenizer, lines)
    if not new:
        return 0
    ids = [item_token(lines[index], tokenizer) for index in new]
    size = max(len(tokenizer), len(model.get_input_embeddings().weight))
    model.resize_token_embeddings(size, mean_resizing=False)
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    for weight in {id(own.weight): own.weight.data for own in embeddings}.values():
        rows = weight.float().cpu().numpy()
        center = rows[known].mean(axis=0)
        distance = np.median(np.linalg.norm(rows[known] - center, axis=1))
        text = shares @ rows[: shares.shape[1]]
        directions = _unit(text - text.mean(axis=0))
        if likes is not None:
            directions += co_occurrence_vectors(likes, rows.shape[1])
        weight[ids] = torch.from_numpy(center + distance * directions[new]).to(weight)
    return len(new)


def write_with_new_items(source: str | Path, folder: Path, catalog: Catalog, trust_remote_code: bool = False) -> None:
    """Write a model with tokens for the items that are new to it."""
    model = load_model(source, trust_remote_code=trust_remote_code, dtype="auto")
    tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
    number = add_item_tokens(model, tokenizer, catalog)
    logger.info("%s: %d items of the catalog are new to it; their tokens start from their texts", source, number)
    write_model(model, tokenizer, folder)


def co_occurrence_vectors(likes: sparse.csr_array, size: int) -> np.ndarray:
    """Return a vector for each item, whose dot products approximate the cosine similarity of two items.

    The vectors are the item factors of a truncated singular value decomposition of the likes, with each item's column
    divided by its L2 norm, in a random orthonormal basis; their norms are at most 1. Items that nobody liked have 0.

    Shape: likes (people, C), binary; returns (C, size).
    """
    counts = np.asarray(likes.sum(axis=0)).ravel()
    columns = (likes @ sparse.diags_array(1 / np.sqrt(np.maximum(counts, 1)))).astype(np.float64)
    rank = min(size, min(columns.shape) - 1, _MOST_DIRECTIONS)
    if rank < 1:  # one person or one item shows no similarity
        return np.zeros((likes.shape[1], size))
    _, values, right = linalg.svds(columns, k=rank, random_state=0)
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((size, rank)))
    vectors: np.ndarray = (right * values[:, None]).T @ basis.T
    return vectors


def _token_shares(texts: list[str], tokenizer: Any) -> sparse.csr_array:
    """Return each text's share of each token, more of rarer ones (TF-IDF), summing to 1. Shape: (texts, vocab)."""
    rows = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    owners = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    ids = np.concatenate([np.empty(0, np.int64), *(np.array(row, np.int64) for row in rows)])
    cells = sparse.coo_array((np.ones(len(ids)), (owners, ids)), shape=(len(texts), len(tokenizer)))
    counts = cells.tocsr()
    weights = np.log((1 + len(texts)) / np.maximum(np.bincount(counts.indices, minlength=counts.shape[1]), 1))
    weighted = counts @ sparse.diags_array(weights)
    sums = np.asarray(weighted.sum(axis=1)).ravel()
    return (sparse.diags_array(1 / np.maximum(sums, 1e-12)) @ weighted).tocsr()


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
