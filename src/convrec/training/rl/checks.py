"""Checks of the trainer's arguments, made before any model is loaded."""

import os
from typing import Any

from convrec.training.rl.arguments import RankGRPOConfig
from convrec.training.rl.constrained import RolloutConstraint
from convrec.training.rl.rewards import RankRewardFunction, required_columns


def check_inputs(
    rewards: list[Any], args: RankGRPOConfig, constraint: RolloutConstraint | None, options: dict[str, Any]
) -> None:
    """Raise `TypeError` or `ValueError` if the trainer's arguments do not fit; `options` go to TRL's trainer."""
    if not isinstance(args, RankGRPOConfig):
        raise TypeError(
            f"args is a {type(args).__name__}; pass a convrec.training.rl.arguments.RankGRPOConfig, which accepts the "
            "options of GRPOConfig and those of Rank-GRPO"
        )
    ranks = {
        i: reward.last_relevance.shape[1] for i, reward in enumerate(rewards) if isinstance(reward, RankRewardFunction)
    }
    if args.by_rank and not ranks:
        raise ValueError(f"reward_funcs = {rewards!r}; add a rank reward, such as RankReward")
    for i, num_ranks in ranks.items():
        if num_ranks != args.num_ranks:
            raise ValueError(
                f"num_ranks = {args.num_ranks}, but reward {i} has {num_ranks} ranks; set both to the same number"
            )
    for name in ("tools", "environment_factory"):
        if options.get(name) is not None:
            raise ValueError(f"{name} is not supported; leave it out: a completion is one list, written in one turn")
    _check_columns(rewards, constraint, options)
    _check_reference(args)
    if constraint is not None:
        _check_constraint(constraint, args, options)


def _check_columns(rewards: list[Any], constraint: RolloutConstraint | None, options: dict[str, Any]) -> None:
    """Raise `ValueError` if a dataset lacks a column that the trainer, a reward or the constraint reads."""
    readers = [("the trainer", {"prompt"})]
    if options.get("rollout_func") is None:  # a rollout_func may add columns
        readers += [(f"reward {getattr(reward, '__name__', reward)!r}", required_columns(reward)) for reward in rewards]
        readers += [("the constraint", {"seen_titles"})] if constraint is not None else []
    for option in ("train_dataset", "eval_dataset"):
        given = options.get(option)
        for dataset in given.values() if isinstance(given, dict) else [given]:
            columns = getattr(dataset, "column_names", None)  # None for some streams
            for reader, needed in readers:
                if columns is not None and not needed <= set(columns):
                    raise ValueError(
                        f"{option} has no {' and no '.join(sorted(needed - set(columns)))}, which {reader} reads; "
                        f"add it (the columns are {', '.join(columns)})"
                    )


def _check_reference(args: RankGRPOConfig) -> None:
    """Raise `ValueError` if TRL would leave the reference model of other processes than the first without weights."""
    settings = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    if args.beta and all(os.environ.get(name, "").lower() == value for name, value in settings.items()):
        raise ValueError(
            "fsdp_cpu_ram_efficient_loading = true: with FSDP2, only the first process would load the weights of the "
            "reference model; set it to false in the launch file (configs/accelerate/fsdp2.yaml), or beta to 0"
        )


def _check_constraint(constraint: RolloutConstraint, args: RankGRPOConfig, options: dict[str, Any]) -> None:
    """Raise `ValueError` if rollouts cannot be constrained, or are too short for a list."""
    if args.use_transformers_continuous_batching or options.get("rollout_func") is not None:
        raise ValueError(
            "a constraint needs rollouts by vLLM or by transformers' generate; give no rollout_func, and set "
            "use_transformers_continuous_batching to False"
        )
    if constraint.num_ranks != args.num_ranks:
        raise ValueError(
            f"num_ranks = {args.num_ranks}, but the constraint has {constraint.num_ranks}; set both to the same number"
        )
    longest = constraint.trie.longest(args.num_ranks)
    if longest > (args.max_completion_length or 0):
        raise ValueError(
            f"max_completion_length = {args.max_completion_length}, but {args.num_ranks} items of the catalog can "
            f"take {longest} tokens; raise it to {longest}"
        )
