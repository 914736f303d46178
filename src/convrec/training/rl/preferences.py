"""DPO and S-DPO with the prompts, rollouts and batches of Rank-GRPO, without rewards and advantages."""

from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.utils import use_adapter

from convrec.data.catalog import Catalog
from convrec.data.matching import Truth
from convrec.generation.line_tokens import tokenize_lines
from convrec.generation.prompt_tokens import generation_prompt
from convrec.training.rl.arguments import RankGRPOConfig
from convrec.training.rl.constrained import RolloutConstraint
from convrec.training.rl.loss import LossOutput
from convrec.training.rl.rollouts import generate_groups
from convrec.training.rl.trainer import RankGRPOTrainer


def softmax_dpo_loss(log_ratios: torch.Tensor, beta: float) -> torch.Tensor:
    """Return the loss of S-DPO (arXiv 2406.09215), a scalar: the mean over P prompts of

        -log σ( -log Σ_d exp( β (ρ_d - ρ_p) ) ),    ρ = log π(list | prompt) - log π_ref(list | prompt),

    for the preferred list p and the K rejected lists d. With one rejected list it is the loss of DPO (arXiv 2305.18290,
    equation 7).

    Shape: log_ratios (P, 1 + K), the ρ of each prompt's lists in nats, the preferred list first.
    """
    margins = beta * (log_ratios[:, 1:] - log_ratios[:, :1])
    return -torch.nn.functional.logsigmoid(-margins.logsumexp(dim=1)).mean()


class PreferredLists:
    """Makes a preferred list from one that the model wrote: the items that the user liked, then the model's items.

    The model's items keep their order. The number of items stays the same, so the last ones are dropped. Liked items
    that are not in the catalog, or are banned for the prompt, are left out.
    """

    def __init__(self, catalog: Catalog, tokenizer: Any):
        """Raise `InputError` for a catalog line that the tokenizer cannot write."""
        self._catalog, self._tokenizer = catalog, tokenizer
        self._lines = tokenize_lines([str(item) for item in catalog.items], tokenizer, generation_prompt(tokenizer))

    def items(self, written: Sequence[int], groundtruth: Iterable[Any], banned: Collection[int]) -> list[int]:
        """Return the items of the preferred list; `written` are the model's items, distinct and not banned."""
        liked = (self._catalog.find(*Truth.of(truth)) for truth in groundtruth)
        wanted = [item for item in liked if item is not None and item not in banned]
        return list(dict.fromkeys([*wanted, *written]))[: len(written)]

    def tokens(self, items: Sequence[int]) -> list[int]:
        """Return the token ids of a list of these items, tokenized as under the catalog constraint, with EOS."""
        *others, last = items
        ids: list[int] = []
        for item in others:
            ids += self._lines[item].later_before_newline if ids else self._lines[item].first_before_newline
        ids += self._lines[last].later_at_end if ids else self._lines[last].first_at_end
        return [*ids, self._tokenizer.eos_token_id]

    def prefer(self, completion: Sequence[int], groundtruth: Iterable[Any], banned: Collection[int]) -> list[int]:
        """Return the token ids of the list preferred to a completion, whose lines must be catalog lines."""
        text = self._tokenizer.decode(completion, skip_special_tokens=True)
        written = [item for item in self._catalog.indices_of_lines(text.split("\n")) if item is not None]
        return self.tokens(self.items(written, groundtruth, banned))


class PreferenceTrainer(RankGRPOTrainer):
    """Trains on preferred and rejected lists: DPO, or with several rejected lists S-DPO (arXiv 2406.09215).

    For each prompt the reference policy writes `num_generations - 1` lists under the constraint. These are rejected.
    The preferred list is the first of them with the items that the user liked moved to the top (`PreferredLists`). The
    loss is `softmax_dpo_loss` with β = `beta`. Log-probabilities are those of the sampled distribution, as in
    Rank-GRPO. The lists' rewards are logged, but not trained on.

    The lists of a group share a micro-batch, each step needs new lists, and transformers writes them in one process:
    the section `rank_grpo` of the parameters is checked for that. `algorithm` is `grpo`: a list is one unit.
    """

    ref_model: Any
    _constraint: Any

    def __init__(
        self, model: Any, reward_funcs: Any, args: RankGRPOConfig, constraint: RolloutConstraint, **kwargs: Any
    ):
        super().__init__(model, reward_funcs, args, constraint, **kwargs)
        self._preferred = PreferredLists(constraint.catalog, self._tokenizer)

    def _complete(self, prompt_ids: list[list[int]], num_generations: int) -> list[list[int]]:
        """Return the token ids of each group's lists: the preferred one, then those of the reference."""
        asked = [prompt for i, prompt in enumerate(prompt_ids) if i % num_generations]
        has_adapters = self.ref_model is None  # without them the policy is the reference
        unwrapped = unwrap_model_for_generation(self.model if has_adapters else self.ref_model, self.accelerator)
        with unwrapped as model, use_adapter(model, adapter_name=None) if has_adapters else nullcontext():
            written = iter(generate_groups(model, asked, self.generation_config, self._constraint))
        lists = []
        for first in range(0, len(prompt_ids), num_generations):
            rejected = [next(written) for _ in range(num_generations - 1)]
            banned = self._constraint.trie.closed(self._constraint.request(prompt_ids[first]))
            lists += [self._preferred.prefer(rejected[0], self._rows[first]["groundtruth"], banned), *rejected]
        return lists

    def _objective(self, logps: torch.Tensor, inputs: dict[str, Any], num_items: torch.Tensor) -> LossOutput:
        """Return the loss of the groups of a micro-batch, a scalar. Shape: logps (B, T), 0 on padding."""
        mask = inputs["completion_mask"]
        groups = (-1, self.num_generations if self.model.training else self.num_generations_eval)
        totals, ratios = (
            (values * mask).sum(dim=1).view(groups) for values in (logps, logps - inputs["ref_per_token_logps"])
        )
        likelihood = totals[:, 0].sum() / mask.sum(dim=1).view(groups)[:, 0].sum()
        margins = self.beta * (ratios[:, :1] - ratios[:, 1:])
        metrics = {"margin": margins.mean(), "accuracy": (margins > 0).float().mean(), "likelihood": likelihood}
        metrics = {f"preferences/{name}": value.detach() for name, value in metrics.items()}
        return LossOutput(softmax_dpo_loss(ratios, self.beta), metrics)
