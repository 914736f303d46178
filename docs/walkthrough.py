"""Write docs/walkthrough.md: one conversation through one step of Rank-GRPO, every number computed by the library.

`make docs-figures` writes the page; a test compares it.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from convrec.data.catalog import Catalog, Item
from convrec.rl.advantages import rank_advantages
from convrec.rl.loss import Objective, Rollouts, rank_grpo_loss
from convrec.rl.rewards import RankReward, rank_returns
from convrec.rl.segmentation import segment_ranks

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

This page follows one conversation through one training step. `docs/walkthrough.py` computes every number with the
functions that the trainer calls; the formulas are those of the paper (arXiv 2510.20150).

## 1. A prompt, and G lists

The catalog has five items: {catalog}. The user says: *"I loved Heat. Something in space, please."* What this user
liked later, the ground truth, is {liked}. Heat was named, so it must not be recommended.

The policy samples G = {generations} lists of N = {ranks} ranks for this prompt:

{lists}

## 2. Relevance: a reward for each rank

A rank is one line of the list. Its relevance rel_k is 1 where its item is in the ground truth and in the catalog, was
not named in the conversation, and stands at no earlier rank (`RankReward`).

{relevance}

Heat, in list 4, was named before, and Arrakis is not in the catalog; both get 0. GRPO gives a whole list one reward,
here DCG@{ranks} ({dcg}): list 3, below the mean, would be made less likely with its good Alien, and list 1 more
likely with its bad Up. In Rank-GRPO each rank answers for its own item: with `returns: exp_inf` the return r_ik of
rank k is rel_k.

## 3. Advantages: each rank beside the same rank of the other lists

A_ik = (r_ik - mean of r_k over the group) / (standard deviation + 0.0001) (`rank_advantages`)

{advantages}

A column sums to 0: a rank is good only in comparison. A rank at which all lists fare alike teaches nothing.

## 4. Importance ratios: one for each rank

Sampled lists can serve several optimiser steps, so the policy may have moved since. Each token has a log-ratio,
log(policy now / policy that sampled). The ratio of a rank is the exponential of their mean over the tokens of its
line, the geometric mean of the tokens' ratios, so that long titles do not weigh more. For list 1:

{tokens}

The ratios w_ik of all lists:

{ratios}

## 5. Clipping and the loss

J = 1/(G N) Σ_i Σ_k min(w_ik A_ik, clip(w_ik, 1 - 0.06, 1 + 0.08) A_ik), and the loss is -J (`rank_grpo_loss`)

Each term w_ik A_ik after clipping:

{terms}

Their mean is J = {objective}. The KL penalty, left out here, keeps the policy near the model that training started
from.

## 6. What the step changes

The gradient of J with respect to the log-probabilities, summed over the tokens of each rank, times G N:

{gradients}

A positive number makes the item more likely at this rank, a negative one less likely. Dune at rank 2 of list 1 has a
high advantage and yet 0: its ratio is above 1.08 already, so this step pushes it no further. In the same way Up at
rank 1 of list 3 is below 0.94 already. In list 3 Her becomes less likely and Alien more likely: **within one list,
the step teaches some ranks and unteaches others**, which the reward of a whole list cannot do.
"""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def by_rank(values: torch.Tensor, digits: int) -> str:
    """Return a table of a number for each list and rank, with what stands there. Shape: (G, N)."""
    rows = [
        [
            str(number),
            *(
                f"{title.partition(' (')[0]} {value:+.{digits}f}"
                for title, value in zip(text.split("\n"), row, strict=True)
            ),
        ]
        for number, (text, row) in enumerate(zip(LISTS, (values + 0.0).tolist(), strict=True), start=1)
    ]
    return table(["list", *(f"rank {k}" for k in range(1, NUM_RANKS + 1))], rows)


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
    objective = Objective(num_ranks=NUM_RANKS, epsilon_low=0.06, epsilon_high=0.08)
    loss = rank_grpo_loss(logps, Rollouts(old_logps, advantages, ranks, mask), objective).loss
    loss.backward()
    assert logps.grad is not None
    ratios = log_ratios.view(size, NUM_RANKS, LINE).mean(dim=2).exp()
    terms = torch.minimum(ratios * advantages, ratios.clamp(0.94, 1.08) * advantages)
    gradients = -logps.grad.view(size, NUM_RANKS, LINE).sum(dim=2) * size * NUM_RANKS

    first = LISTS[0].split("\n")
    tokens = [
        [line, ", ".join(f"{value:+.2f}" for value in part), f"{sum(part) / LINE:+.3f}", f"{ratio:.3f}"]
        for line, part, ratio in zip(
            first, log_ratios[0].view(NUM_RANKS, LINE).tolist(), ratios[0].tolist(), strict=True
        )
    ]
    return TEXT.format(
        catalog=", ".join(str(item) for item in CATALOG.items),
        liked=" and ".join(f"{title} ({year})" for title, year in LIKED),
        generations=size,
        ranks=NUM_RANKS,
        lists=table(
            ["list", *(f"rank {k}" for k in range(1, NUM_RANKS + 1))],
            [[str(number), *text.split("\n")] for number, text in enumerate(LISTS, start=1)],
        ),
        relevance=by_rank(relevance, 0).replace("+", ""),
        dcg=", ".join(f"{value:.2f}" for value in dcg),
        advantages=by_rank(advantages, 2),
        tokens=table(["line", "log-ratios of its tokens", "mean", "ratio w"], tokens),
        ratios=by_rank(ratios, 3).replace("+", ""),
        terms=by_rank(terms, 2),
        objective=f"{-float(loss.detach()):.3f}",
        gradients=by_rank(gradients, 2),
    )


if __name__ == "__main__":
    PAGE.write_text(page())
