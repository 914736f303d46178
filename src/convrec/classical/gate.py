"""The gate: the weights of each kind of evidence for a prompt, by how much every kind says about it.

The score of an item is the sum over kinds k of (w_k + Σ_j A_jk c_j) times its score by k; c_j is the largest score of
the prompt's items by kind j, standardized. In a softmax it is a log-linear model, and its fit to what people liked is
convex: a calibrated log-probability, which depends on no seed. Related: stacking with features (Sill et al., 2009).
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field
from scipy import sparse
from scipy.optimize import minimize

from convrec.classical.evidence import Saved
from convrec.classical.scores import Blocks, row_blocks

logger = logging.getLogger(__name__)

_BEST = 300  # open items of a prompt, by the plain sum of all kinds, among which the likelihood is
_PENALTY = 1e-4  # of a squared weight
_SLOPE_PENALTIES = (np.inf, 1e-2, 1e-3)  # of a squared entry of A; held-out people choose
_HELD_OUT = 4  # each fourth person, by a hash, is held out
_LEAST_SCALE = 0.1
_LARGEST = 1e6  # of a number in a file; those that are fitted are far below
_Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]


class Context(Saved):
    """How the largest score by one kind changes the weight of each kind: by its slope for each `scale` above `mean`."""

    mean: _Number
    scale: _Number = Field(gt=0)
    slopes: dict[str, _Number]


class Gated(Blocks):
    """The sum of some kinds' scores with the weights of each prompt; without `context` these are `weights`.

    Shape: terms (B, C).
    """

    def __init__(self, terms: Mapping[str, Blocks], weights: Mapping[str, float], context: Mapping[str, Context]):
        kinds = [kind for kind in terms if weights.get(kind) or kind in context] or list(terms)[:1]
        self._terms, self.shape = [terms[kind] for kind in kinds], terms[kinds[0]].shape
        known = [(place, context[kind]) for place, kind in enumerate(kinds) if kind in context]
        self._places = [place for place, _ in known]
        self._weights = torch.tensor([weights.get(kind, 0.0) for kind in kinds])
        self._means, self._scales = (
            torch.tensor([getattr(own, name) for _, own in known]) for name in ("mean", "scale")
        )
        self._slopes = torch.tensor([[own.slopes.get(kind, 0.0) for kind in kinds] for _, own in known])

    def block(self, rows: Sequence[int] | np.ndarray | slice) -> torch.Tensor:
        values = [term.block(rows) for term in self._terms]
        weights = self._weights.expand(len(values[0]), -1)
        if self._places:
            largest = torch.stack([values[place].amax(dim=1) for place in self._places], dim=1).cpu()
            weights = weights + (largest - self._means) / self._scales @ self._slopes
        total = torch.zeros_like(values[0])
        for value, weight in zip(values, weights.T.to(total.device), strict=True):
            total.addcmul_(value, weight[:, None])
        return total


class _Pool(NamedTuple):
    """The best open items of the prompts that have a liked one among them, and the places of these prompts.

    Shape: values (rows, items, terms); inputs (rows, 1 + terms), a one and the context; closed (rows, items), -inf or
    0; targets (rows, items), distributions; places (rows,).
    """

    values: torch.Tensor
    inputs: torch.Tensor
    closed: torch.Tensor
    targets: torch.Tensor
    places: torch.Tensor

    @classmethod
    def of(cls, terms: Sequence[Blocks], positives: sparse.csr_array, excluded: Sequence[Sequence[int]]) -> "_Pool":
        """Return the pool with the largest scores as the context, not yet standardized."""
        parts: list[list[torch.Tensor]] = []
        for part in row_blocks(*terms[0].shape):
            scores = [term.block(part).cpu() for term in terms]
            total = torch.zeros_like(scores[0])
            for value in scores:
                total += value
            for place, closed_of in enumerate(excluded[part]):
                total[place, list(closed_of)] = -torch.inf
            best, items = total.topk(min(_BEST, total.shape[1]), dim=1)
            closed = torch.where(best > -torch.inf, 0.0, -torch.inf)
            liked = (torch.from_numpy(positives[part].toarray()).gather(1, items) > 0) & (closed == 0)
            values = torch.stack([value.gather(1, items) for value in scores], dim=2)
            largest = [torch.ones(len(total)), *(value.amax(dim=1) for value in scores)]
            targets = liked / liked.sum(dim=1, keepdim=True).clamp(min=1)
            places = torch.arange(part.start, part.start + len(total))
            found = (values, torch.stack(largest, dim=1), closed, targets, places)
            parts.append([own[liked.any(dim=1)] for own in found])
        return cls(*(torch.cat(own) for own in zip(*parts, strict=True)))

    def at(self, rows: np.ndarray) -> "_Pool":
        """Return the pool of some rows."""
        return _Pool(*(part[torch.from_numpy(rows)] for part in self))

    def losses_and_gradient(self, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return each row's cross-entropy of the items' softmax, whose weights are inputs · matrix.

        The gradient is that of their mean. Shape: matrix (inputs, terms), which may lack the last inputs; result
        (rows,) and as the matrix.
        """
        inputs = self.inputs[:, : len(matrix)]
        weights = inputs @ torch.from_numpy(matrix).float()
        scores = torch.bmm(self.values, weights[:, :, None])[:, :, 0] + self.closed
        log_probability = torch.log_softmax(scores, dim=1)
        losses = -torch.where(self.targets > 0, log_probability * self.targets, 0).sum(dim=1)
        residual = (log_probability.exp() - self.targets) / len(scores)
        gradient = inputs.T @ torch.bmm(residual[:, None], self.values)[:, 0]
        return losses.double().numpy(), gradient.double().numpy()

    def most_likely(self, penalty: float) -> np.ndarray:
        """Return the matrix of the highest penalized likelihood; its first row, the weights, is not negative."""
        width = self.values.shape[2]
        penalties = np.full((1 if penalty == np.inf else self.inputs.shape[1], width), penalty)
        penalties[0] = _PENALTY

        def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
            matrix = flat.reshape(penalties.shape)
            losses, gradient = self.losses_and_gradient(matrix)
            return losses.mean() + float((penalties * matrix**2).sum()), (gradient + 2 * penalties * matrix).ravel()

        start = np.zeros(penalties.size)
        start[:width] = 1 / width
        bounds = [(0, None)] * width + [(None, None)] * (len(start) - width)
        return minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds).x.reshape(penalties.shape)


def fit_gate(
    terms: Mapping[str, Blocks], positives: sparse.csr_array, excluded: Sequence[Sequence[int]], people: np.ndarray
) -> tuple[dict[str, float], dict[str, Context]]:
    """Return the weights, none negative, and their context, of the highest likelihood of what people liked.

    The target of a prompt is uniform over what its person liked. Held-out people choose how much the weights depend on
    the prompt: more only for a gain of two standard errors. Without an open liked item, all weights are 0.

    Shape: terms, positives (B, C); people (B,), numbers.
    """
    pool = _Pool.of(list(terms.values()), positives, excluded)
    if not len(pool.places):
        return dict.fromkeys(terms, 0.0), {}
    largest = pool.inputs[:, 1:]
    means, scales = largest.mean(dim=0), largest.std(dim=0, correction=0).clamp(min=_LEAST_SCALE)
    pool = pool._replace(inputs=torch.cat((pool.inputs[:, :1], (largest - means) / scales), dim=1))
    is_held_out = people[pool.places] % _HELD_OUT == 0
    best, losses = np.inf, dict[float, np.ndarray]()
    if is_held_out.any() and not is_held_out.all():
        for penalty in _SLOPE_PENALTIES:
            matrix = pool.at(~is_held_out).most_likely(penalty)
            losses[penalty], _ = pool.at(is_held_out).losses_and_gradient(matrix)
            gains = losses[best] - losses[penalty]
            if gains.mean() > 2 * gains.std() / np.sqrt(len(gains)):
                best = penalty
        shown = ", ".join(f"{own.mean():.4f} with {penalty:g}" for penalty, own in losses.items())
        logger.info("guide: nats for held-out people by penalty of the slopes: %s", shown)
    matrix = pool.most_likely(best)
    weights = dict(zip(terms, matrix[0].tolist(), strict=True))
    shown = ", ".join(f"{kind} {weight:.3f}" for kind, weight in weights.items())
    logger.info("guide fitted on %d prompts: %s", len(pool.places), shown)
    rows = zip(terms, means.tolist(), scales.tolist(), matrix[1:].tolist(), strict=False)  # none without slopes
    return weights, {
        kind: Context(mean=mean, scale=scale, slopes=dict(zip(terms, slopes, strict=True)))
        for kind, mean, scale, slopes in rows
    }
