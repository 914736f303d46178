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
from convrec.generation.line_tokens import add_tokens, encode, item_token, item_tokens
from convrec.generation.pretrained import load_model, load_tokenizer

logger = logging.getLogger(__name__)

MOST_ITEM_TOKENS = 1_000_000  # measured (docs/training.md): a tokenizer takes 5 s to load for each 100,000
_MOST_DIRECTIONS = 256  # of co-occurrence
_BATCH = 2048  # texts tokenized at once: what the library keeps of each takes kilobytes


def add_item_tokens(model: Any, tokenizer: Any, catalog: Catalog, likes: sparse.csr_array | None = None) -> int:
    """Add a token for each catalog line that has none, and rows for them to the model's embeddings, in place.

    An item's text vector is the mean row of the tokens of its line and metadata, in which rarer tokens weigh more,
    relative to that of all items. The first item tokens start at the mean row plus their text vector, with the usual
    distance from the mean; where there are likes, a co-occurrence vector (`co_occurrence_vectors`) is added. Later ones
    start where a ridge regression on the rows of the catalog's known items expects them, given their text vectors.
    Input and output embeddings get their own rows, unless they are tied. All other rows stay as they are.

    Shape: likes (people, C), binary. Returns the number of new tokens.
    """
    lines = [str(item) for item in catalog.items]
    metadata = [", ".join(item.metadata.values()) for item in catalog.items]
    shares = _token_shares(lines, tokenizer) + _token_shares(metadata, tokenizer)
    known = item_tokens(tokenizer)
    new = add_tokens(tokenizer, lines)
    if not new:
        return 0
    old, ids = (
        [index for index, line in enumerate(lines) if line in known],
        [item_token(own, tokenizer) for own in lines],
    )
    size = max(len(tokenizer), len(model.get_input_embeddings().weight))
    model.resize_token_embeddings(size, mean_resizing=False)
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    for weight in {id(own.weight): own.weight.data for own in embeddings}.values():
        rows = weight.float().cpu().numpy()
        text = shares @ rows[: shares.shape[1]]  # (C, H), of which a million items leave no room for copies
        text -= text.mean(axis=0, dtype=np.float64)
        text /= np.maximum(np.linalg.norm(text, axis=1, keepdims=True), 1e-12)
        others = rows[list(known.values())] if known else rows[: shares.shape[1]]
        center = others.mean(axis=0)
        if known:
            moves = text[new] @ _ridge(text[old], rows[[ids[index] for index in old]] - center)
        else:
            text += 0 if likes is None else co_occurrence_vectors(likes, rows.shape[1])
            moves = np.median(np.linalg.norm(others - center, axis=1)) * text[new]
        moves += center
        weight[[ids[index] for index in new]] = torch.from_numpy(moves).to(weight)
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
    batches = (texts[first : first + _BATCH] for first in range(0, len(texts), _BATCH))
    rows = [np.array(ids, np.int64) for batch in batches for ids in encode(batch, tokenizer)]
    owners = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    ids = np.concatenate([np.empty(0, np.int64), *rows])
    cells = sparse.coo_array((np.ones(len(ids), np.float32), (owners, ids)), shape=(len(texts), len(tokenizer)))
    counts = cells.tocsr()
    weights = np.log((1 + len(texts)) / np.maximum(np.bincount(counts.indices, minlength=counts.shape[1]), 1))
    weighted = counts @ sparse.diags_array(weights.astype(np.float32))
    sums = np.asarray(weighted.sum(axis=1)).ravel()
    return (sparse.diags_array(1 / np.maximum(sums, 1e-12)) @ weighted).tocsr()


def _ridge(given: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the matrix of a ridge regression, whose penalty is the mean square of a given coordinate's column."""
    gram = given.T @ given
    penalty = max(np.trace(gram) / len(gram), 1e-12)
    weights: np.ndarray = np.linalg.solve(gram + penalty * np.eye(len(gram)), given.T @ wanted)
    return weights
