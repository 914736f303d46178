"""TRL's GRPO trainer, with the rank as the unit of reward, advantage and importance ratio."""

from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import gather
from trl import GRPOConfig, GRPOTrainer

from convrec.rl.advantages import Normalization, rank_advantages
from convrec.rl.loss import Aggregation, rank_grpo_loss
from convrec.rl.rewards import RankReward, Returns, rank_returns
from convrec.rl.segmentation import newline_counts, segment_ranks


@dataclass
class RankGRPOConfig(GRPOConfig):
    """GRPOConfig, with the method's own options; its defaults are the published ones."""

    num_ranks: int = field(default=20, metadata={"help": "N, the ranks of a list"})
    returns: Returns = field(default="exp_inf", metadata={"help": "exp_inf, exp or log"})
    return_gamma: float | None = field(default=None, metadata={"help": "Gamma of `exp` returns, above 1"})
    normalization: Normalization = field(default="group", metadata={"help": "group or within_list"})
    aggregation: Aggregation = field(default="rank", metadata={"help": "rank (the paper) or token (its reference)"})
    overflow_penalty: float = field(default=-0.1, metadata={"help": "advantage of tokens past rank N"})
    early_eos_penalty: float = field(default=-0.1, metadata={"help": "advantage of an EOS that comes early"})
    decay_step: int | None = field(default=None, metadata={"help": "the rate drops at this step"})
    decayed_learning_rate: float | None = field(default=None, metadata={"help": "to this value"})
    epsilon: float = field(default=0.06, metadata={"help": "epsilon_low"})
    epsilon_high: float | None = field(default=0.08)
    beta: float = field(default=1e-3, metadata={"help": "weight of the KL penalty, the plain k3 estimator"})
    use_bias_correction_kl: bool = field(default=False)


# Base options that change a loss which this trainer replaces, with the one value that it honours.
_FIXED_OPTIONS = {
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "use_bias_correction_kl": False,
    "use_liger_kernel": False,
    "entropy_coef": 0.0,
}


class RankGRPOTrainer(GRPOTrainer):
    """GRPOTrainer for one `RankReward`; the dataset has `prompt`, `groundtruth` and `seen_titles`.

    Raises `ValueError` at construction for a reward of another kind and for base options that it does not honour.
    """

    args: RankGRPOConfig
    model: Any

    def __init__(self, model: Any, reward_funcs: RankReward, args: RankGRPOConfig, **kwargs: Any):
        if not isinstance(reward_funcs, RankReward):
            raise ValueError(f"reward_funcs = {reward_funcs!r}; give one RankReward")
        for name, only in _FIXED_OPTIONS.items():
            value = getattr(args, name, only)
            if value != only:
                raise ValueError(f"{name} = {value!r} is not honoured by Rank-GRPO's loss; leave it at {only!r}")
        rewards: Any = reward_funcs
        super().__init__(model=model, reward_funcs=rewards, args=args, **kwargs)
        self._rank_reward = reward_funcs
        self._newline_counts = newline_counts(self._tokenizer)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Return TRL's schedule, or the method's: constant, then lower from `decay_step` on."""
        step, rate = self.args.decay_step, self.args.decayed_learning_rate
        if step is None or rate is None:
            return super().create_scheduler(num_training_steps, optimizer)
        factor = rate / self.args.learning_rate
        target: Any = optimizer or self.optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(target, lambda done: factor if done >= step else 1.0)
        return self.lr_scheduler

    def _calculate_rewards(
        self, inputs: list[dict], prompts: list, completions: list, completion_ids_list: list
    ) -> torch.Tensor:
        """Keep the relevance of every rank of all processes, and return its sum to TRL as the reward."""
        local = self._rank_reward.relevance(
            completions, [row["groundtruth"] for row in inputs], [row["seen_titles"] for row in inputs]
        )
        self._relevance = gather(local.to(self.accelerator.device))
        mode = "train" if self.model.training else "eval"
        for rank, value in enumerate(self._relevance.mean(dim=0).tolist(), start=1):
            self._metrics[mode][f"reward/rank_{rank:02d}"].append(value)
        return self._relevance.sum(dim=1, keepdim=True)

    def _generate_and_score_completions(self, inputs: list[dict]) -> dict[str, Any]:
        """Put the ranks of the tokens (B, T) and the advantages of the ranks (B, N) into TRL's batch."""
        batch = super()._generate_and_score_completions(inputs)
        num_generations: Any = self.num_generations if self.model.training else self.num_generations_eval
        returns = rank_returns(self._relevance, self.args.returns, self.args.return_gamma)
        advantages = rank_advantages(returns, num_generations, self.args.normalization)
        start = self.accelerator.process_index * len(inputs)
        ids, mask = batch["completion_ids"], batch["completion_mask"]
        ranks = segment_ranks(ids, mask, self._newline_counts)
        is_eos = torch.isin(ids, torch.tensor(self.eos_token_ids, device=ids.device)) & mask.bool()
        # The EOS belongs to the last item, also after a newline: it is no item beyond rank N.
        ranks = ranks.masked_fill(is_eos & (ranks == self.args.num_ranks), self.args.num_ranks - 1)
        batch["advantages"] = advantages[start : start + len(inputs)]
        batch["ranks"] = ranks
        batch["early_eos"] = is_eos & (ranks < self.args.num_ranks - 1)
        return batch

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the Rank-GRPO loss of one micro-batch, divided for gradient accumulation."""
        completion_ids, mask = inputs["completion_ids"], inputs["completion_mask"]
        input_ids = torch.cat([inputs["prompt_ids"], completion_ids], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], mask], dim=1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, completion_ids.size(1), compute_entropy=True
        )
        old_logps = inputs.get("old_per_token_logps")
        output = rank_grpo_loss(
            logps,
            logps.detach() if old_logps is None else old_logps,
            inputs["advantages"],
            inputs["ranks"],
            mask,
            num_ranks=self.args.num_ranks,
            epsilon_low=self.epsilon_low,
            epsilon_high=self.epsilon_high,
            delta=self.args.delta,
            ref_logps=inputs.get("ref_per_token_logps"),
            beta=self.beta,
            aggregation=self.args.aggregation,
            overflow_advantage=self.args.overflow_penalty,
            early_eos=inputs["early_eos"] if self.args.early_eos_penalty else None,
            early_eos_advantage=self.args.early_eos_penalty,
        )
        mode = "train" if self.model.training else "eval"
        entropy = (entropies * mask).sum() / mask.sum().clamp(min=1)
        for name, value in {**output.metrics, "entropy": entropy.detach()}.items():
            self._metrics[mode][name].append(self.accelerator.gather(value).mean().item())
        return output.loss / (self.current_gradient_accumulation_steps if mode == "train" else 1)
