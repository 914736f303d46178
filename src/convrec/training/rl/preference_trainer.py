"""DPO and S-DPO with the prompts, rollouts and batches of Rank-GRPO, without rewards and advantages."""

from contextlib import nullcontext
from typing import Any

import torch
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.utils import use_adapter

from convrec.training.rl.arguments import RankGRPOConfig
from convrec.training.rl.constrained import RolloutConstraint
from convrec.training.rl.loss import LossOutput
from convrec.training.rl.preferences import PreferredLists, softmax_dpo_loss
from convrec.training.rl.rollouts import generate_groups
from convrec.training.rl.trainer import RankGRPOTrainer


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
