"""The options of Rank-GRPO, the published settings of each algorithm, and the TRL options that are rejected."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from transformers.utils import is_torch_bf16_gpu_available
from trl import GRPOConfig

from convrec.training.rl.advantages import Normalization
from convrec.training.rl.loss import Aggregation, Level
from convrec.training.rl.rewards import Returns

Algorithm = Literal["rank_grpo", "rank_grpo_public", "grpo", "gspo", "dr_grpo", "dapo"]


class Published(NamedTuple):
    """The settings of an algorithm in its publication."""

    level: Level
    aggregation: Aggregation
    epsilon: float
    epsilon_high: float
    scale_rewards: str
    exact_eos_reward: float = 0.0


PUBLISHED: dict[str, Published] = {
    "rank_grpo": Published("rank", "rank", 0.06, 0.08, "group"),
    # the Rank-GRPO authors' public code, with TRL's default aggregation at that time
    "rank_grpo_public": Published("rank", "bnpo", 0.06, 0.08, "group", 0.1),
    "grpo": Published("token", "grpo", 0.2, 0.26, "group"),  # as the baseline of the Rank-GRPO paper
    "gspo": Published("sequence", "grpo", 3e-4, 4e-4, "group"),
    "dr_grpo": Published("token", "dr_grpo", 0.2, 0.2, "none"),
    "dapo": Published("token", "dapo", 0.2, 0.28, "group"),
}

# TRL options that this trainer does not support: the only accepted value, and the reason or the option to use instead.
_FIXED_OPTIONS: dict[str, tuple[Any, str]] = {
    "loss_type": (None, "choose the loss with `algorithm` or `aggregation`"),
    "importance_sampling_level": (None, "choose the unit of the ratio with `algorithm` or `level`"),
    "top_entropy_quantile": (1.0, "the loss covers every token of a rank"),
    "entropy_coef": (0.0, "the objective has no entropy bonus"),
    "use_adaptive_entropy": (False, "the objective has no entropy bonus"),
    "off_policy_mask_threshold": (None, "the clipped ratio already limits off-policy updates"),
    "use_bias_correction_kl": (False, "the KL penalty is the plain k3 estimator"),
    "remove_unused_columns": (False, "the rewards read the other columns of the dataset"),
    "use_liger_kernel": (False, "its fused loss replaces the log-probabilities that the ranks need"),
    "router_aux_loss_coef": (None, "the loss has no router term"),
    "vllm_importance_sampling_mode": (
        "token_truncate",
        "weights are truncated per unit of the ratio (rank, token or list)",
    ),
    "vllm_importance_sampling_clip_min": (None, "weights are truncated from above only"),
    "top_p": (1.0, "the loss needs the log-probabilities of the distribution that is sampled"),
    "top_k": (0, "the loss needs the log-probabilities of the distribution that is sampled"),
    "cache_implementation": (None, "a group shares one cache of its prompt"),
    "min_p": (None, "the loss needs the log-probabilities of the distribution that is sampled"),
    "disable_dropout": (True, "rollouts and all log-probabilities must be of one distribution"),
    "cast_lm_head_to_fp32": (False, "rollouts and all log-probabilities must be of one distribution"),
    "neftune_noise_alpha": (None, "rollouts and all log-probabilities must be of one distribution"),
    "generation_kwargs": (None, "the loss needs the log-probabilities of the distribution that is sampled"),
}


@dataclass
class RankGRPOConfig(GRPOConfig):
    """GRPOConfig with the options of Rank-GRPO. Options left at None take the algorithm's published values.

    `bf16` is on by default if the GPU supports it.

    Raises `ValueError` for TRL options that the trainer does not support, and for options that exclude each other.
    """

    algorithm: Algorithm = field(default="rank_grpo", metadata={"help": ", ".join(PUBLISHED)})
    num_ranks: int = field(default=20, metadata={"help": "N, the number of ranks in a list"})
    returns: Returns = field(default="exp_inf", metadata={"help": "exp_inf, exp or log"})
    return_gamma: float | None = field(default=None, metadata={"help": "discount of `exp` returns, above 1"})
    normalization: Normalization = field(default="group", metadata={"help": "group or within_list"})
    level: Level | None = field(default=None, metadata={"help": "unit of the ratio: rank, sequence or token"})
    aggregation: Aggregation | None = field(default=None, metadata={"help": "see rank_grpo_loss"})
    scalar_rewards: Literal["ranks", "sequence"] = field(
        default="ranks",
        metadata={
            "help": "how a list's scalar reward s is used: s/N is added to the return of each rank (ranks), or its "
            "group-normalised advantage is added to the advantage of each rank (sequence)"
        },
    )
    overflow_penalty: float = field(default=-0.1, metadata={"help": "advantage of tokens past rank N"})
    early_eos_penalty: float = field(default=-0.1, metadata={"help": "advantage of an EOS before rank N"})
    exact_eos_reward: float | None = field(
        default=None, metadata={"help": "advantage of the EOS of a list with N ranks"}
    )
    beam_groups: bool = field(default=False, metadata={"help": "a group is the G best beams of a beam search"})
    compile_layers: bool | None = field(
        default=None, metadata={"help": "compile layers and head for shared prompts; None: on one GPU in bfloat16"}
    )
    decay_step: int | None = field(default=None, metadata={"help": "step at which the learning rate drops"})
    decayed_learning_rate: float | None = field(default=None, metadata={"help": "learning rate after decay_step"})
    epsilon: float | None = field(default=None, metadata={"help": "lower clip range"})  # type: ignore[assignment]
    epsilon_high: float | None = field(default=None)
    scale_rewards: str | None = field(default=None)  # type: ignore[assignment]
    beta: float = field(default=1e-3, metadata={"help": "weight of the KL penalty (k3 estimator)"})
    use_bias_correction_kl: bool = field(default=False)
    disable_dropout: bool = field(default=True)
    loss_type: str | None = field(default=None)  # type: ignore[assignment]
    importance_sampling_level: str | None = field(default=None)  # type: ignore[assignment]
    vllm_importance_sampling_mode: str = field(default="token_truncate")

    def __post_init__(self) -> None:
        if self.algorithm not in PUBLISHED:
            raise ValueError(f"algorithm = {self.algorithm!r}; use one of {', '.join(PUBLISHED)}")
        published = PUBLISHED[self.algorithm]
        self.level, self.aggregation = self.level or published.level, self.aggregation or published.aggregation
        self.epsilon = published.epsilon if self.epsilon is None else self.epsilon
        self.epsilon_high = published.epsilon_high if self.epsilon_high is None else self.epsilon_high
        self.scale_rewards = published.scale_rewards if self.scale_rewards is None else self.scale_rewards
        if self.bf16 is None:
            self.bf16 = is_torch_bf16_gpu_available() and not self.fp16 and not self.use_cpu
        if self.exact_eos_reward is None:
            self.exact_eos_reward = published.exact_eos_reward
        super().__post_init__()
        for name, (only, reason) in _FIXED_OPTIONS.items():
            if getattr(self, name) != only:
                raise ValueError(f"{name} = {getattr(self, name)!r} is not supported; leave it at {only!r}: {reason}")
        by_rank = self.by_rank
        if self.returns == "exp" and (self.return_gamma is None or self.return_gamma <= 1):
            raise ValueError(f"return_gamma = {self.return_gamma}; `exp` returns need a value above 1")
        if (self.decay_step is None) != (self.decayed_learning_rate is None):
            raise ValueError(
                f"decay_step = {self.decay_step} and decayed_learning_rate = {self.decayed_learning_rate}; "
                "give both or neither"
            )
        if self.decay_step is not None and (self.lr_scheduler_type != "constant" or self.warmup_steps):
            raise ValueError(
                f"decay_step = {self.decay_step} needs a constant schedule; set lr_scheduler_type to 'constant' "
                f"(it is {str(self.lr_scheduler_type)!r}) and warmup_steps to 0 (it is {self.warmup_steps})"
            )
        if by_rank and self.scale_rewards == "batch":
            raise ValueError("scale_rewards = 'batch' is not supported for ranks; use 'group' or 'none'")
        if by_rank and self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                f"multi_objective_aggregation = {self.multi_objective_aggregation!r} is not supported; leave it at "
                "'sum_then_normalize': rank rewards are summed, then normalised"
            )
        if not by_rank and self.level == "rank":
            raise ValueError(f"level = 'rank' needs algorithm 'rank_grpo', not {self.algorithm!r}")
        if self.beam_groups and (self.use_vllm or self.use_transformers_continuous_batching):
            raise ValueError("beam_groups = True needs the plain rollouts of transformers; set use_vllm to False")
        completions = self.per_device_train_batch_size * (self.steps_per_generation or 1)
        if self.beam_groups and completions % (self.num_generations or 1):
            raise ValueError(
                f"beam_groups = True, but the {completions} completions of a process are not a multiple of "
                f"num_generations = {self.num_generations}; change one: a beam group cannot be split over processes"
            )
        if self.use_transformers_continuous_batching and self.repetition_penalty != 1:
            raise ValueError(
                f"repetition_penalty = {self.repetition_penalty} is ignored by continuous batching; "
                "set use_transformers_continuous_batching to False"
            )
        window = math.lcm(self.gradient_accumulation_steps, (self.steps_per_generation or 1) * self.num_iterations)
        steps = window // self.gradient_accumulation_steps
        if self.save_strategy == "steps" and self.save_steps % steps:
            raise ValueError(
                f"save_steps = {self.save_steps} is not a multiple of {steps}, the number of steps that share their "
                "rollouts; set it to a multiple, because a checkpoint between them could not be resumed exactly"
            )

    @property
    def by_rank(self) -> bool:
        """Whether each rank of a list has its own reward and advantage."""
        return PUBLISHED[self.algorithm].level == "rank"
