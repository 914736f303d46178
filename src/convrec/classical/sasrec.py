"""SASRec: causal self-attention over what a person liked, in order, predicts the next liked item.

Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018: learned positions, blocks of attention and a
point-wise feed-forward network with layer normalization before and residuals around each, and the dot product with the
embeddings of the input items. The loss is the cross-entropy over all items: with the paper's binary cross-entropy and
its one drawn item, SASRec is undertrained (Klenitskiy and Vasilev, RecSys 2023). Positions count from the beginning of
a sequence, and sequences are cut at random places to the length of the prompts' histories.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from math import log
from operator import itemgetter

import numpy as np
import torch
from scipy import sparse
from torch import nn

from convrec.classical.likelihood import multinomial_residual
from convrec.classical.scores import row_blocks
from convrec.classical.told import most_frequent
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, date_of, named_titles, person_key, truth_items

_MOST_ITEMS = 10_000  # the most liked ones
_MOST_SCORED = 8_000  # the softmax is over all items up to so many, of more it is estimated from `_DRAWN`
_DRAWN = 1_000
_LONGEST = 50  # items of a history, the last ones
_BLOCKS, _HEADS = 2, 1
_BATCH = 128
_LEARNING_RATE = 1e-3
_MOST_STEPS = 4000
_CHECK = 100  # steps between two validations
_PATIENCE = 5  # validations without a better one, after which training stops


def history(row: Row, catalog: Catalog) -> list[int]:
    """Return the catalog items that a row's conversation names as liked, in its order."""
    disliked = catalog.indices_of_titles(row.get("disliked_titles") or ())
    named = (index for title in named_titles(row) for index in catalog.indices_of_title(title))
    return [index for index in named if index not in disliked]


def histories(rows: Iterable[Row], catalog: Catalog) -> list[list[int]]:
    """Return what each person of the rows liked, in order of time: what the rows name, then their ground truth."""
    found: dict[int, list[int]] = {}
    told = [(date_of(row), person_key(row), [*history(row, catalog), *truth_items(row, catalog)]) for row in rows]
    for _, person, items in sorted(told, key=itemgetter(0)):
        found[person] = _merged(found.get(person, []), items)
    return list(found.values())


def _merged(known: list[int], told: list[int]) -> list[int]:
    """Return a history, continued by a later part of it that may overlap with its end."""
    most = 0
    for end in range(1, len(told) + 1):
        size = 0
        while size < min(end, len(known)) and known[-1 - size] == told[end - 1 - size]:
            size += 1
        most = max(most, size)
    return known[: len(known) - most] + told


class _Network(nn.Module):
    """Scores all items as the next one after each item of a sequence; the id after the last one is padding."""

    def __init__(self, num_items: int, length: int, factors: int, dropout: float):
        super().__init__()
        self.items = nn.Embedding(num_items + 1, factors)
        self.positions = nn.Embedding(length, factors)
        layer = nn.TransformerEncoderLayer(factors, _HEADS, factors, dropout, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, _BLOCKS, nn.LayerNorm(factors), enable_nested_tensor=False)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.items.weight, std=factors**-0.5)
        nn.init.normal_(self.positions.weight, std=factors**-0.5)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        """Shape: sequences (B, L), result (B, L, factors)."""
        length = sequences.shape[1]
        hidden = self.dropout(self.items(sequences) + self.positions.weight[:length])
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.blocks(hidden, mask, is_causal=True)

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shape: hidden (..., factors), result (..., items)."""
        return hidden @ self.items.weight[:-1].T

    def loss(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of the targets. Shape: hidden (n, factors), targets (n,).

        Where the items are many, the sum of the softmax is that of items drawn uniformly, times their share's inverse.
        """
        number = len(self.items.weight) - 1
        if number <= _MOST_SCORED:
            return nn.functional.cross_entropy(self.scores(hidden), targets)
        drawn = torch.randint(number, (_DRAWN,))
        others = hidden @ self.items.weight[drawn].T + log(number / _DRAWN)
        others = others.masked_fill(targets[:, None] == drawn, -torch.inf)
        own = (hidden * self.items.weight[targets]).sum(dim=1)
        return (torch.cat((own[:, None], others), dim=1).logsumexp(dim=1) - own).mean()


class SasRec:
    """SASRec, fitted to histories until held-out ones are no longer continued better."""

    def __init__(
        self,
        known: Sequence[Sequence[int]],
        asked: Sequence[Sequence[int]],
        positives: sparse.csr_array,
        *,
        factors: int,
        dropout: float,
        seed: int,
    ):
        """Fit to the `known` histories; `asked` are held-out ones, `positives` what each person liked next.

        Shape: positives (asked, C).
        """
        num_items = positives.shape[1]
        counts = np.bincount([index for one in known for index in one], minlength=num_items)
        self._items = most_frequent(counts, _MOST_ITEMS)
        self._id = {int(index): place for place, index in enumerate(self._items)}
        self._num_items, self._length = num_items, min(max(map(len, asked), default=0) or 1, _LONGEST)
        sequences = [own for one in known if len(own := self._ids(one)) > 1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._network = _Network(len(self._items), self._length, factors, dropout)
            if sequences:
                self._train(sequences, asked, positives, np.random.default_rng(seed))

    def _ids(self, items: Sequence[int]) -> list[int]:
        return [self._id[index] for index in items if index in self._id]

    def _padded(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        rows = [torch.tensor(one) for one in sequences]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=len(self._items))

    def _batches(self, sequences: list[list[int]], rng: np.random.Generator) -> Iterator[list[list[int]]]:
        """Yield the batches of an epoch, in which each item but the first of a sequence is predicted once."""
        parts = []
        for one in sequences:
            begin = int(rng.integers(-self._length + 1, 1))
            starts = range(begin, len(one) - 1, self._length)
            parts += [one[max(0, start) : start + self._length + 1] for start in starts]
        order = rng.permutation(len(parts))
        for start in range(0, len(parts), _BATCH):
            yield [parts[place] for place in order[start : start + _BATCH]]

    def _train(
        self,
        sequences: list[list[int]],
        asked: Sequence[Sequence[int]],
        positives: sparse.csr_array,
        rng: np.random.Generator,
    ) -> None:
        """Train until the likelihood of the positives has not risen for some validations, and keep the best weights."""
        network = self._network
        optimizer = torch.optim.Adam(network.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.98))
        batches = chain.from_iterable(self._batches(sequences, rng) for _ in count())
        best, least, waited = network.state_dict(), np.inf, 0
        for _ in range(_MOST_STEPS // _CHECK):
            network.train()
            for batch in islice(batches, _CHECK):
                padded = self._padded(batch)
                targets = padded[:, 1:]
                real = targets < len(self._items)
                loss = network.loss(network(padded[:, :-1])[real], targets[real])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            held_out = self._loss(asked, positives)
            waited += 1
            if held_out < least:
                least, waited = held_out, 0
                best = {name: weight.clone() for name, weight in network.state_dict().items()}
            if waited == _PATIENCE:
                break
        network.load_state_dict(best)

    def _loss(self, asked: Sequence[Sequence[int]], positives: sparse.csr_array) -> float:
        rows = row_blocks(len(asked), self._num_items)
        found = (multinomial_residual(torch.from_numpy(self.scores(asked[part])), positives[part]) for part in rows)
        return sum(float(loss) for loss, _ in found)

    @torch.no_grad()
    def scores(self, named: Sequence[Sequence[int]]) -> np.ndarray:
        """Return the scores of all items after each history; without an item of the model, they are equal.

        Shape: (B, C), float32.
        """
        self._network.eval()
        scores = np.zeros((len(named), self._num_items), dtype=np.float32)
        ids = [self._ids(one)[-self._length :] for one in named]
        rows = np.array([place for place, one in enumerate(ids) if one], dtype=np.int64)
        if len(rows):
            kept = [ids[place] for place in rows]
            hidden = self._network(self._padded(kept))
            last = hidden[torch.arange(len(kept)), torch.tensor([len(one) - 1 for one in kept])]
            own = self._network.scores(last).numpy()
            scores[rows] = own.min(axis=1, keepdims=True) - 1  # items that are not in the model
            scores[np.ix_(rows, self._items)] = own
        return scores
