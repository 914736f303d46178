"""Rank returns, and rewards of each rank that are computed with the catalog."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from convrec.data.catalog import Catalog
from convrec.data.matching import Truth, judge, make_target
from convrec.data.parsing import read_list
from convrec.evaluation.scoring import Quality, quality

Returns = Literal["exp_inf", "exp", "log"]
_LIST_METRICS = {
    "lists/items": "length",
    "lists/in_catalog": "in_catalog",
    "lists/duplicates": "duplicates",
    "lists/seen": "seen",
}


def rank_returns(relevance: torch.Tensor, kind: Returns, gamma: float | None = None) -> torch.Tensor:
    """Return the return r_k of each rank k = 1 to N, from the relevance rel (arXiv 2510.20150).

    - `exp_inf`: rel_k.
    - `exp`: Σ_{j>=k} rel_j / gamma^(j-k), with gamma > 1.
    - `log`: DCG@k:N = Σ_{j>=k} rel_j / log2(j+1).

    Shape: relevance and the result (B, N). Raises `ValueError` for an unknown kind, or `exp` without gamma > 1.
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
    """The relevance of each rank of a completion: 1 for a hit, else 0, under the matching protocol `reward`.

    As a TRL reward function it returns DCG@N, the sequence reward of the GRPO baseline. `RankGRPOTrainer` also reads
    the reward of each rank, `last_relevance`; subclasses have other rewards. Completions are chat messages or plain
    strings. The dataset's column `groundtruth` holds `{title, year}` mappings or pairs.
    """

    __name__ = "dcg"

    def __init__(self, catalog: Catalog, num_ranks: int):
        self.catalog, self.num_ranks = catalog, num_ranks
        self.last_relevance = torch.zeros(0, num_ranks)  # of the last call; shape (B, N), float32

    def _judge(
        self,
        completions: Sequence[Any],
        groundtruth: Sequence[Sequence[Any]],
        seen_titles: Sequence[Sequence[str]],
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the relevance of every rank, and the means of the list metrics by name."""
        hits, qualities = bytearray(), []
        row: Any = None
        for completion, *asked in zip(completions, groundtruth, seen_titles, strict=True):
            if asked != row:  # the lists of one prompt are consecutive
                target = make_target(list(map(Truth.of, asked[0])), asked[1], self.catalog)
                row = asked
            written = read_list(completion_text(completion), self.catalog)
            hits += judge(written, target, self.catalog, self.num_ranks, "reward")
            qualities.append(quality(written, target, self.catalog, self.num_ranks))
        relevance = torch.frombuffer(hits, dtype=torch.uint8).view(-1, self.num_ranks).float()
        columns = dict(zip(Quality._fields, zip(*qualities, strict=True), strict=True))
        means = {name: sum(columns[key]) / len(qualities) for name, key in _LIST_METRICS.items()}
        return relevance, {**means, "lists/hits": float(relevance.sum(dim=1).mean())}

    def __call__(
        self,
        completions: Sequence[Any],
        groundtruth: Sequence[Sequence[Any]],
        seen_titles: Sequence[Sequence[str]],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float]:
        """Return DCG@N of each completion; pass the means of the list metrics to `log_metric`, which TRL provides."""
        self.last_relevance, means = self._judge(completions, groundtruth, seen_titles)
        if log_metric is not None:
            for name, value in means.items():
                log_metric(name, value)
        return rank_returns(self.last_relevance, "log")[:, 0].tolist()


# The other rewards of ranks, by the fields of `Rewards` in `project/config/rank_grpo.py` that hold their weights.
REWARDS: dict[str, type[RankReward]] = {}


def completion_text(completion: Any) -> str:
    """Return the text of a completion: a string, or the content of the last chat message."""
    return completion if isinstance(completion, str) else completion[-1]["content"]
