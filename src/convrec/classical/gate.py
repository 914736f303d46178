"""The gate: a calibrated log-probability of what a person likes, from an item's scores by each kind of evidence.

It is the weighted sum of the scores, whose fit to what people liked is convex, and, for the best items by that sum,
what a small net adds, which sees an item's scores beside the largest of the prompt. Related: stacking with
features (Sill et al., 2009).
"""

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.optimize import minimize
from torch import nn

from convrec.classical.scores import Blocks, largest, row_blocks

logger = logging.getLogger(__name__)

_BEST = 200  # items of a prompt that the likelihood is among, and to which the net adds
_PENALTY = 1e-4  # of a squared weight
_HELD_OUT = 4  # each fourth person, by a hash, is held out of the net's fit
_LEAST_ERRORS = 3.0  # of the gain of these people, who choose the epoch, too
_LEAST_SCALE = 1e-3
_FAR = 3.0  # standard deviations of the largest scores, which the net sees at most
_HIDDEN, _DROPPED = 64, 0.2
_RATE, _DECAY, _BATCH, _EPOCHS = 8e-3, 0.05, 128, 16


class Net(nn.Module):
    """What is added to an item's score, from its scores by K kinds and the largest of its prompt.

    Shape: values (B, items, K), peaks (B, K); result (B, items).
    """

    values: torch.Tensor  # mean and scale
    peaks: torch.Tensor

    def __init__(self, num_kinds: int):
        super().__init__()
        self.register_buffer("values", torch.tensor([[0.0], [1.0]]).repeat(1, num_kinds))
        self.register_buffer("peaks", self.values.clone())
        self.of_item, self.of_prompt = nn.Linear(num_kinds, _HIDDEN), nn.Linear(num_kinds, _HIDDEN, bias=False)
        self.second, self.last = nn.Linear(_HIDDEN, _HIDDEN), nn.Linear(_HIDDEN, 1, bias=False)
        nn.init.zeros_(self.last.weight)

    def standardize(self, values: torch.Tensor, peaks: torch.Tensor) -> None:
        """Take mean and scale of the inputs from these."""
        for own, seen in ((self.values, values.flatten(0, 1)), (self.peaks, peaks)):
            own.copy_(torch.stack((seen.mean(dim=0), seen.std(dim=0, correction=0).clamp(min=_LEAST_SCALE))))

    def forward(self, values: torch.Tensor, peaks: torch.Tensor) -> torch.Tensor:
        said = ((peaks - self.peaks[0]) / self.peaks[1]).clamp(-_FAR, _FAR)
        hidden = self.of_item((values - self.values[0]) / self.values[1]) + self.of_prompt(said)[:, None]
        kept = nn.functional.dropout(torch.ones_like(hidden[:, :1]), _DROPPED, self.training)  # of a prompt, by unit
        hidden = nn.functional.gelu(hidden) * kept
        added: torch.Tensor = self.last(nn.functional.gelu(self.second(hidden)))
        return added[..., 0]

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, torch.Tensor], num_kinds: int) -> "Net":
        """Return the net of a file. Raises `ValueError` for other arrays than those of a net of so many kinds."""
        net = cls(num_kinds).eval()
        for name, own in net.state_dict().items():
            if (found := arrays[name]).shape != own.shape or not found.isfinite().all():
                raise ValueError(f"{name} has the shape {tuple(found.shape)}, not {tuple(own.shape)}, or no number")
        net.load_state_dict(dict(arrays))
        return net

    def times(self, factor: float) -> "Net":
        """Return the net that adds so many times as much."""
        found = copy.deepcopy(self)
        found.last.weight.data *= factor
        return found


class Gated(Blocks):
    """The weighted sum of some kinds' scores, with what the net adds. All other items stay below its, in their order.

    Shape: terms (B, C), in the order of the weights; those without a weight are needed only for the net.
    """

    def __init__(self, terms: Mapping[str, Blocks], weights: Mapping[str, float], net: Net | None = None):
        kinds = [kind for kind in weights if net or (kind in terms and weights[kind])] or list(terms)[:1]
        self._terms, self.shape = [terms[kind] for kind in kinds], terms[kinds[0]].shape
        self._weights, self._net = [weights.get(kind, 0.0) for kind in kinds], net

    @torch.no_grad()
    def block(self, rows: Sequence[int] | np.ndarray | slice) -> torch.Tensor:
        values = [term.block(rows) for term in self._terms]
        total = _weighted(values, self._weights)
        if self._net is None:
            return total
        best, items = largest(total, min(_BEST, total.shape[1]))
        net, peaks = self._net.to(total.device), torch.stack([value.amax(dim=1) for value in values], dim=1)
        changed = best + net(torch.stack([value.gather(1, items) for value in values], dim=2), peaks)
        total += (changed.amin(dim=1) - best[:, -1])[:, None]
        return total.scatter_(1, items, changed)


def _weighted(blocks: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    total = torch.zeros_like(blocks[0])
    for block, weight in zip(blocks, weights, strict=True):
        total.add_(block, alpha=weight)
    return total


class _Pool(NamedTuple):
    """The best open items of the prompts that have a liked one among them, and the places of these prompts.

    Shape: values (rows, items, terms); peaks (rows, terms); closed (rows, items), -inf or 0; targets (rows, items),
    distributions; places (rows,).
    """

    values: torch.Tensor
    peaks: torch.Tensor
    closed: torch.Tensor
    targets: torch.Tensor
    places: torch.Tensor

    @classmethod
    def of(
        cls,
        terms: Sequence[Blocks],
        weights: Sequence[float],
        positives: sparse.csr_array,
        excluded: Sequence[Sequence[int]],
    ) -> "_Pool":
        parts: list[list[torch.Tensor]] = []
        for part in row_blocks(*terms[0].shape):
            scores = [term.block(part).cpu() for term in terms]
            ranked = _weighted(scores, weights)
            for place, closed_of in enumerate(excluded[part]):
                ranked[place, list(closed_of)] = -torch.inf
            best, items = ranked.topk(min(_BEST, ranked.shape[1]), dim=1)
            closed = torch.where(best > -torch.inf, 0.0, -torch.inf)
            liked = (torch.from_numpy(positives[part].toarray()).gather(1, items) > 0) & (closed == 0)
            values = torch.stack([value.gather(1, items) for value in scores], dim=2)
            peaks = torch.stack([value.amax(dim=1) for value in scores], dim=1)
            targets = liked / liked.sum(dim=1, keepdim=True).clamp(min=1)
            places = torch.arange(part.start, part.start + len(ranked))
            parts.append([own[liked.any(dim=1)] for own in (values, peaks, closed, targets, places)])
        return cls(*(torch.cat(own) for own in zip(*parts, strict=True)))

    def at(self, rows: np.ndarray) -> "_Pool":
        return _Pool(*(part[torch.from_numpy(rows)] for part in self))

    def losses(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each row's cross-entropy of the softmax of its open items' scores, and the log-probabilities.

        Shape: scores (rows, items); result (rows,) and (rows, items).
        """
        log_probability = torch.log_softmax(scores + self.closed, dim=1)
        return -torch.where(self.targets > 0, log_probability * self.targets, 0).sum(dim=1), log_probability

    def loss_and_gradient(self, weights: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the mean loss of the weighted sum, and its gradient. Shape: (terms,) both."""
        losses, log_probability = self.losses(self.values @ torch.from_numpy(weights).float())
        residual = (log_probability.exp() - self.targets) / len(losses)
        return losses.double().mean().item(), torch.einsum("ri,rit->t", residual, self.values).double().numpy()

    def most_likely(self) -> np.ndarray:
        """Return the weights, none negative, of the highest penalized likelihood. Shape: (terms,)."""
        size = self.values.shape[2]

        def objective(weights: np.ndarray) -> tuple[float, np.ndarray]:
            loss, gradient = self.loss_and_gradient(weights)
            return loss + _PENALTY * float(weights @ weights), gradient + 2 * _PENALTY * weights

        start, bounds = np.full(size, 1 / size), [(0, None)] * size
        return minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds).x


def _fit_net(pool: _Pool, weights: np.ndarray, is_held_out: np.ndarray) -> Net | None:
    """Return the net of the epoch that suits held-out people best, None if they gain below three standard errors."""
    learnt, held_out = pool.at(~is_held_out), pool.at(is_held_out)
    steps = len(learnt.places) // _BATCH
    if not steps or not len(held_out.places):
        return None
    weight = torch.from_numpy(weights).float()
    bases = [own.values @ weight for own in (learnt, held_out)]
    before = held_out.losses(bases[1])[0]
    rng, best, chosen = np.random.default_rng(0), before, None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Net(len(weights))
        net.standardize(learnt.values, learnt.peaks)
        optimizer = torch.optim.AdamW(net.parameters(), lr=_RATE, weight_decay=_DECAY)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=_EPOCHS * steps + 1, pct_start=0.1)
        for _ in range(_EPOCHS):
            net.train()
            for rows in np.array_split(rng.permutation(len(learnt.places))[: steps * _BATCH], steps):
                batch = learnt.at(rows)
                loss = batch.losses(bases[0][rows] + net(batch.values, batch.peaks))[0].mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            with torch.no_grad():
                after = held_out.losses(bases[1] + net.eval()(held_out.values, held_out.peaks))[0]
            if after.mean() < best.mean():
                best, chosen = after, copy.deepcopy(net)
    gains = (before - best).numpy()
    shown = before.mean(), best.mean(), len(gains)
    logger.info("guide: %.4f nats by the weights, %.4f with the net, for %d prompts of held-out people", *shown)
    return chosen if gains.mean() > _LEAST_ERRORS * gains.std() / np.sqrt(len(gains)) else None


def fit_weights(
    terms: Mapping[str, Blocks], positives: sparse.csr_array, excluded: Sequence[Sequence[int]]
) -> dict[str, float]:
    """Return the weights, none negative, of the highest likelihood of what people liked; all 0 if nothing is open.

    The likelihood is that of a prompt's best open items by the plain sum, the target uniform over what its person
    liked. Shape: terms, positives (B, C).
    """
    pool = _Pool.of(list(terms.values()), [1.0] * len(terms), positives, excluded)
    if not len(pool.places):
        return dict.fromkeys(terms, 0.0)
    weights = dict(zip(terms, pool.most_likely().tolist(), strict=True))
    shown = ", ".join(f"{kind} {weight:.3f}" for kind, weight in weights.items())
    logger.info("weights fitted on %d prompts: %s", len(pool.places), shown)
    return weights


def fit_gate(
    terms: Mapping[str, Blocks], positives: sparse.csr_array, excluded: Sequence[Sequence[int]], people: np.ndarray
) -> tuple[dict[str, float], Net | None]:
    """Return the weights of `fit_weights`, and the net that suits the same people beside them, if it gains enough.

    Shape: terms, positives (B, C); people (B,), numbers.
    """
    weights = fit_weights(terms, positives, excluded)
    if not any(weights.values()):
        return weights, None
    fitted = list(weights.values())
    pool = _Pool.of(list(terms.values()), fitted, positives, excluded)
    return weights, _fit_net(pool, np.array(fitted), people[pool.places] % _HELD_OUT == 0)
