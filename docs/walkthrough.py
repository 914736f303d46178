"""Write docs/walkthrough.md: one conversation through one step of Rank-GRPO, with numbers that the library computes.

`make docs-figures` writes the page.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from convrec.data.catalog import YEAR_TOLERANCE, Catalog, Item
from convrec.data.parsing import read_list
from convrec.training.rl.advantages import rank_advantages
from convrec.training.rl.loss import Objective, Rollouts, rank_grpo_loss
from convrec.training.rl.rewards import RankReward, rank_returns
from convrec.training.rl.segmentation import segment_ranks

PAGE = Path(__file__).parent / "walkthrough.md"
CATALOG = Catalog([Item("Heat", 1995), Item("Alien", 1979), Item("Up", 2009), Item("Dune", 2021), Item("Her", 2013)])
LIKED = [("Alien", 1979), ("Dune", 2021)]
SEEN = ["Heat"]
LISTS = [
    "Alien (1979)\nDune (2021)\nUp (2009)",
    "Dune (2021)\nUp (2009)\nHer (2013)",
    "Up (2009)\nHer (2013)\nAlien (1979)",
    "Up (2009)\nHeat (1995)\nArrakis (1984)",
]
LOW, HIGH = 0.06, 0.08  # the clip range
NUM_RANKS, LINE = 3, 3  # ranks of a list, and tokens of a line: title, year, and the newline or the end of the list
NEWLINE = 1
# log(policy now / policy that sampled) of each token, as earlier optimiser steps could have left them
LOG_RATIOS = [
    [0.05, 0.02, -0.01, 0.20, 0.10, 0.06, 0.01, 0.00, -0.01],
    [0.09, 0.03, 0.00, -0.04, -0.03, 0.01, 0.02, 0.00, 0.01],
    [-0.10, -0.08, -0.03, 0.00, 0.01, -0.01, 0.04, 0.03, 0.02],
    [-0.03, 0.01, -0.01, -0.02, -0.04, 0.00, -0.06, -0.03, 0.00],
]

TEXT = """\
# One step of Rank-GRPO, with numbers

This page follows one conversation through one training step. `docs/walkthrough.py` computes the numbers with the
functions that the trainer calls. The formulas are those of the paper (arXiv 2510.20150).

## 1. A prompt and G sampled lists

The catalog has five items, numbered from 0:
{catalog}.

The user says: *"I loved Heat. Something in space, please."* The user later liked {liked}:
they are the ground truth. The user has named Heat, so recommending it gives no reward.

The policy samples G = {generations} lists of N = {ranks} ranks for this prompt. A rank is one line of a list.

{lists}

## 2. Parsing: the catalog item of each line

Each line is parsed into a title and a year, and matched to an item of the catalog (`read_list`). Case and extra spaces
do not matter, and the year may differ by up to {tolerance}. The table shows the number of each line's item:

{items}

Arrakis is not in the catalog.

## 3. Relevance: a reward for each rank

The relevance rel_k of rank k is 1 if its item meets four conditions, and else 0 (`RankReward`): it is in the catalog,
it is in the ground truth, the conversation did not name it, and no earlier rank of the list has it.

{relevance}

With `returns: exp_inf`, the return of a rank is its own relevance: r_ik = rel_ik for rank k of list i.

GRPO, in contrast, rewards the whole list, here with DCG@{ranks}: {dcg} for the four lists, on average
{mean_dcg}. List 3 is below the average, so GRPO makes all of it less likely, including the relevant Alien. List 1 is
above, so GRPO makes all of it more likely, including the irrelevant Up.

## 4. Advantages: each rank compared with the same rank of the other lists

A_ik = (r_ik - mean of r_k over the G lists) / (standard deviation of r_k + 0.0001) (`rank_advantages`)

At rank 1 the returns are {returns}. Their mean is {mean}, and their standard deviation (with G - 1) is {deviation}.
For Alien in list 1, A = (1 - {mean}) / ({deviation} + 0.0001) = {advantage}.

{advantages}

Each column sums to 0, because a rank is only compared with the same rank of the other lists. If all lists have the same
return at a rank, its advantages are 0, and the step learns nothing from it.

## 5. Importance ratios: one for each rank

One set of sampled lists can serve several optimiser steps, so the policy may have changed since it sampled them. Each
token has a log-ratio: log(probability now / probability when sampled). The ratio w_ik of a rank is the exponential of
the mean log-ratio of its line's tokens, which is the geometric mean of the tokens' ratios. A long title therefore
counts no more than a short one. For list 1:

{tokens}

The ratios of all lists:

{ratios}

## 6. Clipping and the loss

J = 1/(G N) Σ_i Σ_k min(w_ik A_ik, clip(w_ik, 1 - {low}, 1 + {high}) A_ik), and the loss is -J (`rank_grpo_loss`)

Clipping limits how far one set of lists can move the policy: once a ratio has left the range in the direction of its
advantage, the clipped product is the minimum, and it no longer depends on the policy.

Two ranks are outside the range from {floor} to {ceiling}:

- Dune at rank 2 of list 1: min({first[0]}) = min({first[1]}) = {first[2]}
- Up at rank 1 of list 3: min({second[0]}) = min({second[1]}) = {second[2]}

The terms of all ranks:

{terms}

Their mean is J = {total} / {count} = {objective}, so the loss is {loss}. In training a KL penalty is added, which
keeps the policy near the model that training started from.

## 7. Which way each rank moves

The gradient of J with respect to the log-probabilities, summed over the tokens of each rank, times G N. An item with ↑
becomes more likely at its rank, one with ↓ less likely, and one with · has no gradient:

{gradients}

The two clipped ranks have a gradient of 0: the ratio of Dune in list 1 is already above {ceiling}, and that of Up in
list 3 is already below {floor}.

**Within one list, some ranks become more likely and others less likely**: in list 3, Alien goes up and Her goes down. A
single reward for the whole list cannot do that.
"""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def by_rank(cells: Sequence[Sequence[str]]) -> str:
    """Return a table of one row for each list, and one column for each rank."""
    rows = [[str(number), *row] for number, row in enumerate(cells, start=1)]
    return table(["list", *(f"rank {k}" for k in range(1, NUM_RANKS + 1))], rows)


def numbers(values: torch.Tensor, form: str, arrows: bool = False) -> str:
    """Return a table of a number for each title, with the arrow of its sign if asked. Shape: (G, N)."""
    return by_rank(
        [
            [
                f"{line.partition(' (')[0]} {value:{form}}"
                + (f" {'↑' if value > 0 else '↓' if value else '·'}") * arrows
                for line, value in zip(text.split("\n"), row, strict=True)
            ]
            for text, row in zip(LISTS, (values + 0.0).tolist(), strict=True)
        ]
    )


def clipping(ratio: float, advantage: float) -> list[str]:
    """Return what the minimum of a rank's term is taken of, as products and as values, and the term."""
    products = [(weight, weight * advantage) for weight in (ratio, min(max(ratio, 1 - LOW), 1 + HIGH))]
    return [
        ", ".join(f"{weight:.3f} × {advantage:+.3f}" for weight, _ in products),
        ", ".join(f"{value:+.3f}" for _, value in products),
        f"{min(value for _, value in products):+.3f}",
    ]


def page() -> str:
    """Return the page."""
    reward = RankReward(CATALOG, NUM_RANKS)
    size = len(LISTS)
    dcg = reward(LISTS, [LIKED] * size, [SEEN] * size)
    relevance = reward.last_relevance
    advantages = rank_advantages(rank_returns(relevance, "exp_inf"), size).double()

    ids = torch.tensor([0, 0, NEWLINE] * NUM_RANKS).expand(size, -1)
    mask = torch.ones_like(ids)
    ranks = segment_ranks(ids, mask, newline_counts=torch.tensor([0, 1]))
    log_ratios = torch.tensor(LOG_RATIOS, dtype=torch.float64)
    old_logps = torch.full_like(log_ratios, -2.0)
    logps = (old_logps + log_ratios).requires_grad_()
    objective = Objective(num_ranks=NUM_RANKS, epsilon_low=LOW, epsilon_high=HIGH)
    loss = rank_grpo_loss(logps, Rollouts(old_logps, advantages, ranks, mask), objective).loss
    loss.backward()
    assert logps.grad is not None
    ratios = log_ratios.view(size, NUM_RANKS, LINE).mean(dim=2).exp()
    terms = torch.minimum(ratios * advantages, ratios.clamp(1 - LOW, 1 + HIGH) * advantages)
    torch.testing.assert_close(-terms.mean(), loss.detach())  # the terms shown are those of the library's loss
    gradients = -logps.grad.view(size, NUM_RANKS, LINE).sum(dim=2) * size * NUM_RANKS

    first = LISTS[0].split("\n")
    tokens = [
        [line, ", ".join(f"{value:+.2f}" for value in part), f"{sum(part) / LINE:+.3f}", f"{ratio:.3f}"]
        for line, part, ratio in zip(
            first, log_ratios[0].view(NUM_RANKS, LINE).tolist(), ratios[0].tolist(), strict=True
        )
    ]
    items = [
        [f"{line} → {'none' if item is None else item}" for line, item in zip(text.split("\n"), found, strict=True)]
        for text, found in ((text, read_list(text, CATALOG).items) for text in LISTS)
    ]
    return TEXT.format(
        catalog=", ".join(f"{index} {item}" for index, item in enumerate(CATALOG.items)),
        liked=" and ".join(f"{title} ({year})" for title, year in LIKED),
        generations=size,
        ranks=NUM_RANKS,
        lists=by_rank([text.split("\n") for text in LISTS]),
        tolerance=YEAR_TOLERANCE,
        items=by_rank(items),
        relevance=numbers(relevance, ".0f"),
        dcg=", ".join(f"{value:.2f}" for value in dcg),
        mean_dcg=f"{sum(dcg) / size:.2f}",
        returns=", ".join(f"{value:.0f}" for value in relevance[:, 0].tolist()),
        mean=f"{float(relevance[:, 0].mean()):.2f}",
        deviation=f"{float(relevance[:, 0].std()):.3f}",
        advantage=f"{float(advantages[0, 0]):+.2f}",
        advantages=numbers(advantages, "+.2f"),
        tokens=table(["line", "log-ratios of its tokens", "mean", "ratio w"], tokens),
        ratios=numbers(ratios, ".3f"),
        low=LOW,
        high=HIGH,
        floor=1 - LOW,
        ceiling=1 + HIGH,
        first=clipping(float(ratios[0, 1]), float(advantages[0, 1])),
        second=clipping(float(ratios[2, 0]), float(advantages[2, 0])),
        terms=numbers(terms, "+.2f"),
        total=f"{float(terms.sum()):.3f}",
        count=size * NUM_RANKS,
        objective=f"{-float(loss.detach()):.3f}",
        loss=f"{float(loss.detach()):.3f}",
        gradients=numbers(gradients, "+.2f", arrows=True),
    )


if __name__ == "__main__":
    PAGE.write_text(page())
