"""The options of Rank-GRPO, the published settings of each algorithm, and what the trainer rejects."""

import math
import os
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from transformers.utils import is_torch_bf16_gpu_available
from trl import GRPOConfig

from convrec.generation.trie import require_length
from convrec.training.rl.constrained import RolloutConstraint
from convrec.training.rl.loss import Aggregation, Level
from convrec.training.rl.rewards import RankReward, Returns

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

# TRL options that this trainer does not support, with the only accepted value.
_FIXED_OPTIONS: dict[str, Any] = {
    # `algorithm`, `level` and `aggregation` choose the loss, which has no entropy bonus and no router term
    "loss_type": None,
    "importance_sampling_level": None,
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "router_aux_loss_coef": None,
    "off_policy_mask_threshold": None,
    "mask_truncated_completions": False,
    "use_bias_correction_kl": False,  # the KL penalty is the plain k3 estimator
    "delta": None,
    "use_liger_kernel": False,  # its fused loss replaces the log-probabilities that the ranks need
    "multi_objective_aggregation": "sum_then_normalize",
    "vllm_importance_sampling_mode": "token_truncate",  # weights are truncated per unit of the ratio, from above
    "vllm_importance_sampling_clip_min": None,
    # rollouts and all log-probabilities must be of one distribution
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "generation_kwargs": None,
    "use_transformers_continuous_batching": False,
    "disable_dropout": True,
    "cast_lm_head_to_fp32": False,
    "neftune_noise_alpha": None,
    "cache_implementation": None,  # a group shares one cache of its prompt
    "remove_unused_columns": False,  # the rewards read the other columns of the dataset
}


@dataclass
class RankGRPOConfig(GRPOConfig):
    """GRPOConfig with the options of Rank-GRPO. Options left at None take the algorithm's published values.

    `bf16` is on by default if the GPU supports it.

    Raises `ValueError` for TRL options that the trainer does not support, and for options that exclude each other.
    """

    algorithm: Algorithm = "rank_grpo"
    num_ranks: int = 20  # N, the number of ranks in a list
    returns: Returns = "exp_inf"
    return_gamma: float | None = None  # discount of `exp` returns, above 1
    level: Level | None = None  # unit of the ratio
    aggregation: Aggregation | None = None  # see `rank_grpo_loss`
    overflow_penalty: float = -0.1  # advantage of tokens past rank N
    early_eos_penalty: float = -0.1  # advantage of an EOS before rank N
    exact_eos_reward: float | None = None  # advantage of the EOS of a list with N ranks
    compile_layers: bool | None = None  # layers and head for shared prompts; None: on one GPU in bfloat16
    decay_step: int | None = None  # the learning rate is constant, and from this step on `decayed_learning_rate`
    decayed_learning_rate: float | None = None
    epsilon: float | None = None  # type: ignore[assignment]
    epsilon_high: float | None = None
    scale_rewards: str | None = None  # type: ignore[assignment]
    beta: float = 1e-3  # weight of the KL penalty (k3 estimator)
    use_bias_correction_kl: bool = False
    disable_dropout: bool = True
    loss_type: str | None = None  # type: ignore[assignment]
    importance_sampling_level: str | None = None  # type: ignore[assignment]
    vllm_importance_sampling_mode: str = "token_truncate"

    def __post_init__(self) -> None:
        if self.algorithm not in PUBLISHED:
            raise ValueError(f"algorithm = {self.algorithm!r}; use one of {', '.join(PUBLISHED)}")
        for name, value in PUBLISHED[self.algorithm]._asdict().items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        if self.bf16 is None:
            self.bf16 = is_torch_bf16_gpu_available() and not self.fp16 and not self.use_cpu
        super().__post_init__()
        for name, only in _FIXED_OPTIONS.items():
            if getattr(self, name) != only:
                raise ValueError(f"{name} = {getattr(self, name)!r} is not supported by the trainer; set {only!r}")
        if self.by_rank and self.scale_rewards == "batch":
            raise ValueError("scale_rewards = 'batch' is not supported for ranks; use 'group' or 'none'")
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


def check_inputs(
    rewards: list[Any], args: RankGRPOConfig, constraint: RolloutConstraint | None, options: dict[str, Any]
) -> None:
    """Raise `TypeError`, `ValueError` or `InputError` if the trainer's arguments do not fit; `options` go to TRL's."""
    if not isinstance(args, RankGRPOConfig):
        raise TypeError(f"args is a {type(args).__name__}; pass a RankGRPOConfig, which has the options of GRPOConfig")
    sizes = [reward.last_relevance.shape[1] for reward in rewards if isinstance(reward, RankReward)]
    if args.by_rank and not sizes:
        raise ValueError(f"reward_funcs = {rewards!r}; add a rank reward, such as RankReward")
    sizes += [constraint.num_ranks] if constraint is not None else []
    if set(sizes) - {args.num_ranks}:
        raise ValueError(
            f"num_ranks = {args.num_ranks}, but the rewards and the constraint have {sizes} ranks; set all to the same"
        )
    for name in ("tools", "environment_factory", *(["rollout_func"] if constraint is not None else [])):
        if options.get(name) is not None:
            raise ValueError(f"{name} is not supported here; leave it out: the policy writes a list in one turn")
    if constraint is not None:
        require_length("max_completion_length", args.max_completion_length or 0, constraint.trie, args.num_ranks)
    efficient = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    if args.beta and all(os.environ.get(name, "").lower() == value for name, value in efficient.items()):
        raise ValueError(  # TRL would leave the reference of other processes than the first without weights
            "fsdp_cpu_ram_efficient_loading = true: with FSDP2, only the first process would load the weights of the "
            "reference model; set it to false in the launch file (configs/accelerate/fsdp2.yaml), or beta to 0"
        )
