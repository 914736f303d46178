"""The encoder: from the words of a conversation and the items that it names to what the person likes.

A softmax over the catalog, of low rank: logits = h (E + V M)ᵀ + b and h = x F, with F, E, M and b fitted. The inputs x
are the words, the named items, and the mean of the liked items' vectors V, each projected on its largest singular
vectors; V are the texts of the items, so that what few people liked learns from similar items. A fitted encoder holds
one matrix for each input, nothing of single conversations. Related: two-tower models with item features (Covington et
al., RecSys 2016).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from torch import nn

from convrec.classical.scores import Matrix
from convrec.classical.stored import as_saved, compact
from convrec.classical.told import most_frequent

_MOST_WORDS = 5_000  # the most frequent ones
_MOST_ITEMS = 5_000  # the most liked ones; others have probability 0
_WORDS, _NAMED, _TEXTS = 300, 250, 200  # singular vectors
_SIZE = 128  # of h
_DROPPED, _DROPPED_HIDDEN = 0.3, 0.25  # shares of x and h
_RATE, _DECAY = 3e-3, 0.1
_BATCH, _EPOCHS, _MOST_STEPS = 256, 8, 400
_LENGTH, _NOTHING = 8.0, 1e-9  # of the mean of each input, and of one that training lacks


@dataclass
class Encoder:
    """A fitted encoder. Shape: see the fields, with d = 128; C' are the items that it knows, as places of the C."""

    columns: np.ndarray  # (D',) of the D words
    words: np.ndarray  # (D', d)
    named: np.ndarray  # (2C, d)
    liked: np.ndarray  # (C, d)
    places: np.ndarray  # (C',)
    items: np.ndarray  # (C', d)
    bias: np.ndarray  # (C',)

    @classmethod
    def empty(cls, num_items: int) -> "Encoder":
        """Return the encoder that knows no item."""
        none, matrix = np.zeros(0, dtype=np.int64), partial(np.zeros, dtype=np.float32)
        return cls(
            none, matrix((0, 1)), matrix((2 * num_items, 1)), matrix((num_items, 1)), none, matrix((0, 1)), matrix(0)
        )

    @classmethod
    def fit(cls, words: Matrix, named: sparse.csr_array, liked: sparse.csr_array, vectors: np.ndarray) -> "Encoder":
        """Return the encoder of n conversations, with the `item_vectors` of a catalog.

        Shape: words (n, D); named (n, 2C); liked (n, C); vectors (C, T).
        """
        words, named = sparse.csr_array(words), sparse.csr_array(named, dtype=np.float32)
        columns = most_frequent(np.bincount(words.indices, minlength=words.shape[1]), _MOST_WORDS)
        places = most_frequent(np.asarray((liked > 0).sum(axis=0)).ravel(), _MOST_ITEMS)
        said = _chosen(words, columns)
        maps = [_singular(said, _WORDS), _singular(named, _NAMED), vectors]
        parts = [said @ maps[0], named @ maps[1], _mean_liked(named, vectors)]
        scales = [_LENGTH / length if (length := _length(part)) > _NOTHING else 0.0 for part in parts]
        inputs = np.concatenate([scale * part for scale, part in zip(scales, parts, strict=True)], axis=1)
        net = _fit(torch.from_numpy(inputs), (liked[:, places] > 0).tocsr(), torch.from_numpy(vectors[places]))
        weights = np.split(net.inputs.weight.detach().numpy().T, np.cumsum([part.shape[1] for part in parts])[:-1])
        own = [scale * matrix @ weight for scale, matrix, weight in zip(scales, maps, weights, strict=True)]
        with torch.no_grad():
            items, bias = net.vectors().numpy(), net.bias.numpy()
        words_map, named_map, liked_map = map(as_saved, own)
        return cls(columns, words_map, named_map, liked_map, places, as_saved(items), as_saved(bias))

    def scores(self, words: Matrix, named: sparse.csr_array) -> np.ndarray:
        """Return the log-probability of each item, the smallest for those that it does not know.

        Shape: words (B, D); named (B, 2C); result (B, C), float32.
        """
        hidden = _chosen(sparse.csr_array(words), self.columns) @ self.words + named.astype(np.float32) @ self.named
        hidden += _mean_liked(named, self.liked)
        found = np.zeros((hidden.shape[0], len(self.liked)), dtype=np.float32)
        if len(self.places):
            logits = torch.from_numpy((hidden @ self.items.T + self.bias).astype(np.float32))
            known = torch.log_softmax(logits, dim=1).numpy()
            found += known.min(axis=1, keepdims=True)
            found[:, self.places] = known
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what `of_arrays` makes the encoder of."""
        return {name: compact(values) for name, values in vars(self).items()}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Encoder":
        """Return the encoder that `arrays` describes."""
        kinds = {"columns": np.int64, "places": np.int64}
        return cls(**{name: values.astype(kinds.get(name, np.float32)) for name, values in arrays.items()})

    def moved(self, columns: np.ndarray, num_items: int) -> "Encoder":
        """Return the encoder of another catalog, in which each item has its place in `columns`, or none, -1."""
        at = np.flatnonzero(columns >= 0)

        def rows(matrix: np.ndarray) -> np.ndarray:
            found = np.zeros((num_items, matrix.shape[1]), dtype=np.float32)
            found[columns[at]] = matrix[at]
            return found

        named = np.concatenate([rows(half) for half in np.split(self.named, 2)])
        is_there = columns[self.places] >= 0
        places, items, bias = columns[self.places][is_there], self.items[is_there], self.bias[is_there]
        return Encoder(self.columns, self.words, named, rows(self.liked), places, items, bias)


def item_vectors(texts: Matrix) -> np.ndarray:
    """Return the vectors of items' texts on their largest singular vectors. Shape: (C, D); (C, T), T at most 200."""
    texts = sparse.csr_array(texts)
    vectors = texts @ _singular(texts, _TEXTS)
    return vectors / max(_length(vectors), _NOTHING)


class _Net(nn.Module):
    def __init__(self, num_inputs: int, vectors: torch.Tensor, counts: np.ndarray):
        super().__init__()
        self._texts = vectors
        self.inputs = nn.Linear(num_inputs, _SIZE, bias=False)
        self.mapped = nn.Linear(vectors.shape[1], _SIZE, bias=False)
        nn.init.normal_(self.inputs.weight, std=0.02)
        self.own = nn.Parameter(0.05 * torch.randn(len(vectors), _SIZE))
        self.bias = nn.Parameter(torch.log(torch.from_numpy(counts).float() + 0.3))

    def vectors(self) -> torch.Tensor:
        return self.own + self.mapped(self._texts)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.inputs(nn.functional.dropout(inputs, _DROPPED))
        return nn.functional.dropout(hidden, _DROPPED_HIDDEN) @ self.vectors().T + self.bias


def _fit(inputs: torch.Tensor, liked: sparse.csr_array, vectors: torch.Tensor) -> _Net:
    """Return the net of the highest likelihood of what was liked: uniform over it, for each conversation."""
    rows = np.flatnonzero(np.diff(liked.indptr))
    rng = np.random.default_rng(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = _Net(inputs.shape[1], vectors, np.asarray(liked.sum(axis=0)).ravel())
        decayed = [value for name, value in net.named_parameters() if name != "bias"]
        groups = [{"params": decayed, "weight_decay": _DECAY}, {"params": [net.bias], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=_RATE, betas=(0.9, 0.99))
        steps = min(_EPOCHS * max(1, len(rows) // _BATCH), _MOST_STEPS)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps + 1, pct_start=0.1)
        order = np.empty(0, dtype=np.int64)
        for _ in range(steps if len(rows) else 0):
            if len(order) < _BATCH:
                order = np.append(order, rng.permutation(rows))
            batch, order = order[:_BATCH], order[_BATCH:]
            target = torch.from_numpy(liked[batch].toarray().astype(np.float32))
            target /= target.sum(dim=1, keepdim=True)
            loss = -(torch.log_softmax(net(inputs[batch]), dim=1) * target).sum(dim=1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return net


def _mean_liked(named: Any, vectors: np.ndarray) -> np.ndarray:
    """Return the sum of the liked items' vectors over the root of their number. Shape: (B, 2C) and (C, d); (B, d)."""
    liked = sparse.csr_array(named)[:, : len(vectors)].astype(np.float32)
    return (liked @ vectors) / np.sqrt(np.maximum(np.asarray(liked.sum(axis=1)), 1)).astype(np.float32)[:, None]


def _singular(matrix: sparse.csr_array, number: int) -> np.ndarray:
    """Return the largest right singular vectors, or all where there are few. Shape: (n, D); (D, number)."""
    number = min(number, min(matrix.shape) - 1)
    if number < 1 or not matrix.nnz:
        return np.zeros((matrix.shape[1], 1), dtype=np.float32)
    return TruncatedSVD(number, n_iter=3, random_state=0).fit(matrix).components_.T.astype(np.float32)


def _chosen(matrix: sparse.csr_array, columns: np.ndarray) -> sparse.csr_array:
    """Return `matrix[:, columns]`, of ascending columns; SciPy takes memory and time for all of 10^7 columns."""
    places = np.searchsorted(columns, matrix.indices)
    is_there = np.append(columns, -1)[places] == matrix.indices
    starts = np.append(0, np.cumsum(is_there))[matrix.indptr]
    return sparse.csr_array((matrix.data[is_there], places[is_there], starts), (matrix.shape[0], len(columns)))


def _length(rows: np.ndarray) -> float:
    return float(np.sqrt((rows**2).sum(axis=1).mean())) if rows.size else 0.0
