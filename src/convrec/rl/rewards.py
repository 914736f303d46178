"""Rank returns, and the reward that knows the catalog."""

from collections.abc import Sequence
from typing import Any, Literal

import torch

from convrec.data.catalog import YEAR_TOLERANCE, Catalog
from convrec.matching import Truth, relevance

Returns = Literal["exp_inf", "exp", "log"]


def rank_returns(relevance: torch.Tensor, kind: Returns, gamma: float | None = None) -> torch.Tensor:
    """Return r_k of each rank (method, "Returns").

    `exp_inf`: rel_k. `exp`: Σ_{j>=k} rel_j / gamma^(j-k), gamma > 1. `log`: DCG@k:N = Σ_{j>=k} rel_j / log2(j+1).

    Shape: (B, N), as `relevance`. Raises `ValueError` on an unknown kind, or on `exp` without gamma > 1.
    """
    relevance = relevance.to(torch.get_default_dtype()) if not relevance.is_floating_point() else relevance
    num_ranks = relevance.shape[1]
    rank = torch.arange(num_ranks, device=relevance.device, dtype=relevance.dtype)
    if kind == "exp_inf":
        return relevance.clone()
    if kind == "log":
        gains = relevance / torch.log2(rank + 2)
        return gains.flip(1).cumsum(1).flip(1)
    if kind == "exp":
        if gamma is None or gamma <= 1:
            raise ValueError(f"gamma = {gamma}; `exp` returns need a gamma above 1")
        distance = rank[:, None] - rank[None, :]  # j - k of row j, column k
        decay = torch.where(distance >= 0, gamma ** -distance.clamp(min=0), torch.zeros_like(distance))
        return relevance @ decay
    raise ValueError(f"kind = {kind!r}; use 'exp_inf', 'exp' or 'log'")


class RankReward:
    """The relevance of each rank of a completion; as a function of TRL, the number of hits of the list.

    Completions are chat messages or plain strings; `groundtruth` holds `{title, year}` mappings or pairs.
    """

    __name__ = "hits"

    def __init__(self, catalog: Catalog, num_ranks: int, year_tolerance: int = YEAR_TOLERANCE):
        self.catalog, self.num_ranks, self.year_tolerance = catalog, num_ranks, year_tolerance

    def relevance(
        self,
        completions: Sequence[Any],
        groundtruth: Sequence[Sequence[Any]],
        seen_titles: Sequence[Sequence[str]],
    ) -> torch.Tensor:
        """Return rel of every rank under the protocol `reward`. Shape: (B, N), float32."""
        rows = [
            relevance(
                completion if isinstance(completion, str) else completion[-1]["content"],
                [Truth(t["title"], int(t["year"])) if isinstance(t, dict) else Truth(*t) for t in truths],
                seen,
                self.catalog,
                self.num_ranks,
                "reward",
                self.year_tolerance,
            )
            for completion, truths, seen in zip(completions, groundtruth, seen_titles, strict=True)
        ]
        return torch.tensor(rows, dtype=torch.float32)

    def __call__(
        self,
        completions: Sequence[Any],
        groundtruth: Sequence[Sequence[Any]],
        seen_titles: Sequence[Sequence[str]],
        **_: Any,
    ) -> list[float]:
        """Return the number of hits of each completion."""
        return self.relevance(completions, groundtruth, seen_titles).sum(dim=1).tolist()
