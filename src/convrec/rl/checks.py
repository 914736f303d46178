"""What the trainer refuses before it loads anything."""

from typing import Any

from convrec.rl.arguments import RankGRPOConfig
from convrec.rl.constrained import RolloutConstraint
from convrec.rl.rewards import RankRewardFunction, required_columns


def check_inputs(
    rewards: list[Any], args: RankGRPOConfig, constraint: RolloutConstraint | None, options: dict[str, Any]
) -> None:
    """Raise `TypeError` or `ValueError` where the trainer's arguments, `options` of its base among them, do not fit."""
    if not isinstance(args, RankGRPOConfig):
        raise TypeError(
            f"args is a {type(args).__name__}; give a convrec.rl.arguments.RankGRPOConfig, which takes the same "
            "options and those of Rank-GRPO"
        )
    ranks = {
        i: reward.last_relevance.shape[1] for i, reward in enumerate(rewards) if isinstance(reward, RankRewardFunction)
    }
    if args.by_rank and not ranks:
        raise ValueError(f"reward_funcs = {rewards!r}; at least one must be a rank reward, as RankReward is")
    for i, num_ranks in ranks.items():
        if num_ranks != args.num_ranks:
            raise ValueError(f"num_ranks = {args.num_ranks}, but reward {i} is of {num_ranks} ranks; make them agree")
    for name in ("tools", "environment_factory"):
        if options.get(name) is not None:
            raise ValueError(f"{name} is not honoured; a completion is one list, written in one turn")
    _check_columns(rewards, constraint, options)
    if constraint is not None:
        _check_constraint(constraint, args, options)


def _check_columns(rewards: list[Any], constraint: RolloutConstraint | None, options: dict[str, Any]) -> None:
    """Raise `ValueError` where a dataset lacks a column that the rewards or the constraint read."""
    readers = [("the trainer", {"prompt"})]
    if options.get("rollout_func") is None:  # which may add columns of its own
        readers += [(f"reward {getattr(reward, '__name__', reward)!r}", required_columns(reward)) for reward in rewards]
        readers += [("the constraint", {"seen_titles"})] if constraint is not None else []
    for option in ("train_dataset", "eval_dataset"):
        given = options.get(option)
        for dataset in given.values() if isinstance(given, dict) else [given]:
            columns = getattr(dataset, "column_names", None)  # a stream may not know its own
            for reader, needed in readers:
                if columns is not None and not needed <= set(columns):
                    raise ValueError(
                        f"{option} has no {' and no '.join(sorted(needed - set(columns)))}, which {reader} reads; it "
                        f"has {', '.join(columns)}: add what is missing"
                    )


def _check_constraint(constraint: RolloutConstraint, args: RankGRPOConfig, options: dict[str, Any]) -> None:
    """Raise `ValueError` where rollouts cannot be constrained, or have no room for a list."""
    if args.use_vllm or args.use_transformers_continuous_batching or options.get("rollout_func") is not None:
        raise ValueError("a constraint needs the plain rollouts of transformers; set use_vllm to False")
    if constraint.num_ranks != args.num_ranks:
        raise ValueError(f"num_ranks = {args.num_ranks}, the constraint's is {constraint.num_ranks}; make them agree")
    longest = constraint.trie.longest(args.num_ranks)
    if longest > (args.max_completion_length or 0):
        raise ValueError(
            f"max_completion_length = {args.max_completion_length}: {args.num_ranks} items of the catalog can take "
            f"{longest} tokens; raise it to that"
        )
