"""TRL's GRPO trainer with the rank as the unit of reward, advantage and importance ratio."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate.utils import gather, gather_object
from trl import GRPOTrainer
from trl.models.utils import unwrap_model_for_generation

from convrec.generation.finite import FiniteTrainer
from convrec.generation.line_tokens import item_tokens
from convrec.generation.processors import without_adapters
from convrec.generation.prompt_tokens import token_ids
from convrec.training.rl.advantages import rank_advantages
from convrec.training.rl.arguments import RankGRPOConfig, check_inputs
from convrec.training.rl.batches import micro_batches, trim_padding, with_signal
from convrec.training.rl.compiled import compile_layers
from convrec.training.rl.constrained import RolloutConstraint
from convrec.training.rl.dropout import disable_dropout
from convrec.training.rl.half_weights import MasterAdamW, cast_weights, halve_weights, takes_half_weights
from convrec.training.rl.logprobs import add_log_prob_head
from convrec.training.rl.loop import EpochSampler, StepClock
from convrec.training.rl.loss import LossOutput, Objective, Rollouts, rank_grpo_loss
from convrec.training.rl.rewards import RankReward, rank_returns
from convrec.training.rl.rollouts import generate_groups
from convrec.training.rl.segmentation import attach_eos, list_ends, newline_counts, segment_ranks
from convrec.training.rl.shared_prompts import share_prompts
from convrec.training.rl.vllm_rollouts import constrain_requests, constrained_engine, send_item_rows

logger = logging.getLogger(__name__)


class RankGRPOTrainer(FiniteTrainer, GRPOTrainer):
    """A GRPOTrainer that rewards each rank of a list: Rank-GRPO (arXiv 2510.20150) and its baselines.

    The rank algorithms, `rank_grpo` and `rank_grpo_public`, need a rank reward (`RankReward`) among `reward_funcs`.
    Other reward functions and reward models give a scalar s for each list, and s/N is the return of its ranks. Each has
    advantages of its own, so that its scale does not matter, and their weighted sum is that of the rank (as in GDPO,
    arXiv 2601.05242, without its division by the deviation of the batch). `rank_grpo` does not train on groups whose
    lists have equal rewards. The other algorithms treat each list as one unit with TRL's own advantages.
    Dropout is disabled, so that rollouts and all log-probabilities come from the same distribution.

    With a `constraint`, rollouts contain only catalog items, and the policy is the constrained distribution. The
    dataset then needs the column `seen_titles`; columns `guided_items` and `log_weights` guide the lists, and
    those keep the wishes of the column `conversation`.

    Raises the errors of `check_inputs` at construction, and `NotFiniteError` in training if the loss or its gradient is
    not finite.
    """

    args: Any  # RankGRPOConfig, whose fields the base declares as optional
    model: Any
    reward_funcs: Any
    _tokenizer: Any
    _buffered_inputs: Any

    def __init__(
        self,
        model: Any,
        reward_funcs: Any,
        args: RankGRPOConfig,
        constraint: RolloutConstraint | None = None,
        **kwargs: Any,
    ):
        rewards = list(reward_funcs) if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]
        check_inputs(rewards, args, constraint, kwargs)
        self._rank_rewards = [i for i, reward in enumerate(rewards) if isinstance(reward, RankReward)]
        self._constraint = constraint
        self.seconds: dict[str, float] = defaultdict(float)
        self.tokens: int | torch.Tensor = 0
        self._rows: list[dict[str, Any]] = []  # of this process's last rollouts, as the completions
        self._completions: list[Any] = []
        self._returns: list[torch.Tensor] = []  # of all processes; see `_calculate_rewards`
        by_vllm = constraint if args.use_vllm else None
        with nullcontext() if by_vllm is None else constrained_engine(by_vllm):
            super().__init__(model=model, reward_funcs=rewards, args=args, **kwargs)
        if by_vllm is not None:
            constrain_requests(self.vllm_generation, by_vllm)
        if args.use_vllm:
            send_item_rows(self.vllm_generation)
        if self.aux_loss_enabled:
            raise ValueError("router_aux_loss_coef of the model is not supported; set it to 0 in its configuration")
        disabled = disable_dropout(self.model)
        if disabled:
            rates = ", ".join(f"{name} = {rate}" for name, rate in sorted(disabled.items()))
            logger.info("dropout is disabled in reinforcement learning: %s", rates)
        self._has_item_tokens = bool(item_tokens(self._tokenizer))
        counts = newline_counts(self._tokenizer)
        unnamed = self.model.config.get_text_config().vocab_size - len(counts)  # ids without a token can be sampled
        self._newline_counts = torch.nn.functional.pad(counts, (0, max(0, unnamed)))
        own_optimizer = kwargs.get("optimizers", (None, None))[0] or kwargs.get("optimizer_cls_and_kwargs")
        is_half = own_optimizer is None and takes_half_weights(self.model, args, self.accelerator)
        compiled = is_half and args.device.type == "cuda" if args.compile_layers is None else args.compile_layers
        hindrances = set()
        for policy in (self.model, self.ref_model):
            if policy is not None:
                base = without_adapters(self.accelerator.unwrap_model(policy))
                add_log_prob_head(base, args.repetition_penalty, args.temperature, constraint, compiled=compiled)
                hindrances.add(share_prompts(base))
        self._loss_settings = self._make_objective()
        for hindrance in hindrances - {None}:
            logger.info("prompts are not shared between completions: %s", hindrance)
        self._masters = halve_weights(self.model) if is_half else {}
        for policy in filter(None, (self.model, self.ref_model)):
            if compiled and hindrances == {None}:
                compile_layers(policy)
            if is_half:
                cast_weights(policy)
        self.add_callback(StepClock(self))

    def _make_objective(self) -> Objective:
        """Return the settings of the loss."""
        args = self.args
        cap = args.vllm_importance_sampling_clip_max
        return Objective(
            num_ranks=args.num_ranks if args.by_rank else 1,
            epsilon_low=self.epsilon_low,
            epsilon_high=self.epsilon_high,
            beta=self.beta,
            level=args.level,
            aggregation=args.aggregation,
            max_completion_length=args.max_completion_length,
            overflow_advantage=args.overflow_penalty if args.by_rank else 0.0,
            eos_in_rank=args.algorithm == "rank_grpo_public" and not self._has_item_tokens,
            vllm_importance_sampling_clip_max=math.inf if cap is None else cap,
        )

    def last_group(self) -> tuple[list[dict], list, torch.Tensor]:
        """Return rows, completions and relevance (B, N) of this process's last rollouts."""
        return self._rows, self._completions, self.reward_funcs[self._rank_rewards[0]].last_relevance

    def record_metrics(self, metrics: dict[str, Any]) -> None:
        """Add numbers to the next log, averaged over the calls until then."""
        for name, value in metrics.items():
            self._metrics["train" if self.model.training else "eval"][name].append(value)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log TRL's and the recorded metrics; those on a GPU are transferred together."""
        for series in self._metrics.values():
            tensors = [value for values in series.values() for value in values if isinstance(value, torch.Tensor)]
            numbers = iter(torch.stack([tensor.float() for tensor in tensors]).tolist() if tensors else ())
            for name, values in series.items():
                series[name] = [next(numbers) if isinstance(value, torch.Tensor) else value for value in values]
        super().log(logs, start_time)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - start

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        is_new = self.optimizer is None
        optimizer: Any = super().create_optimizer(model)
        if self._masters and is_new:
            optimizer = self.optimizer = MasterAdamW(optimizer, self._masters)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Return TRL's schedule, or with `decay_step` a constant rate that is lower from that step on."""
        step = self.args.decay_step
        if step is None:
            return super().create_scheduler(num_training_steps, optimizer)
        factor = self.args.decayed_learning_rate / self.args.learning_rate
        target: Any = optimizer or self.optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(target, lambda done: factor if done >= step else 1.0)
        return self.lr_scheduler

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        names = ("data_source", "mini_repeat_count", "batch_size", "repeat_count", "shuffle", "seed")
        by_epoch = EpochSampler(**{name: getattr(sampler, name) for name in names})
        by_epoch.trainer = self
        return by_epoch

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Return the tokens of prompts, and TRL's places for images and what goes with them."""
        return token_ids(self._tokenizer, prompts), None, {}

    def _generate_single_turn(
        self, prompt_ids: Any, images: Any, multimodal_fields: Any, num_generations: int, has_tool_images: bool = False
    ) -> Any:
        with self._timed("rollout"):
            if self._constraint is not None:
                shown = ("seen_titles", "conversation", "guided_items", "log_weights")
                asked = prompt_ids, [{name: row.get(name) for name in shown} for row in self._rows]
                if self.use_vllm:  # a process may send the prompts of others
                    asked = gather_object(asked[0]), gather_object(asked[1])
                self._constraint.begin(*asked)
            if self.use_vllm:
                return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations)
            return self._complete(prompt_ids, num_generations), None

    def _complete(self, prompt_ids: list[list[int]], num_generations: int) -> list[list[int]]:
        """Return the policy's completion for each prompt; each prompt is repeated `num_generations` times in a row."""
        unwrapped = unwrap_model_for_generation(
            self.model_wrapped,
            self.accelerator,
            gather_deepspeed3_params=self.args.ds3_gather_for_generation,
            gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
        )
        with unwrapped as model, self._dist.summon_full_params(self.model_wrapped, recurse=False):
            return generate_groups(model, prompt_ids, self.generation_config, self._constraint)

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """Return the next micro-batch; generate new rollouts if the buffered ones are used up."""
        if not self.model.training:
            return trim_padding(self._generate_and_score_completions(generation_batch))
        number = self.args.steps_per_generation
        if self._buffered_inputs is None or self._step % (number * self.num_iterations) == 0:
            batch = self._generate_and_score_completions(generation_batch)
            if self.args.algorithm == "rank_grpo":
                batch = with_signal(batch, number)
            steps = -(-number // self.args.gradient_accumulation_steps)
            self._buffered_inputs = micro_batches(batch, number, steps)
            sizes = torch.tensor([float(len(part["completion_ids"])) for part in self._buffered_inputs])
            mean = self.accelerator.gather(sizes.to(self.accelerator.device)).mean()
            for part, size in zip(self._buffered_inputs, sizes, strict=True):
                part["weight"] = size / mean  # so that each list of a step weighs the same
        return self._buffered_inputs[self._step % number]

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Return log-probabilities and entropies (B, T) of the completions, and None; entropies 0 if not asked for.

        Batches hold prompts of similar length. Shape: input_ids, attention_mask (B, P + T), with T = `logits_to_keep`.
        """
        sides = (slice(None, -logits_to_keep), slice(-logits_to_keep, None))
        values = [tensor[:, side] for side in sides for tensor in (input_ids, attention_mask)]
        whole = dict(zip(("prompt_ids", "prompt_mask", "completion_ids", "completion_mask"), values, strict=True))
        order = whole["prompt_mask"].sum(1).argsort(stable=True)
        scored = []
        for rows in order.split(batch_size or len(order)):
            prompts, prompt_mask, ids, mask = trim_padding(
                {name: value[rows] for name, value in whole.items()}
            ).values()
            with self.accelerator.autocast():
                output = model(
                    input_ids=torch.cat([prompts, ids], dim=1),
                    attention_mask=torch.cat([prompt_mask, mask], dim=1),
                    completion_width=ids.shape[1],
                    with_entropy=compute_entropy,
                )
            both = torch.stack([output.log_probs, output.entropy])
            scored.append(torch.nn.functional.pad(both, (0, logits_to_keep - ids.shape[1])))
        log_probs, entropies = torch.cat(scored, dim=1)[:, order.argsort()]
        return log_probs, entropies, None

    def _calculate_rewards(
        self, inputs: list[dict], prompts: list, completions: list, completion_ids_list: list
    ) -> torch.Tensor:
        """Return TRL's rewards (B, number of functions); store the returns (B, N) of each for all processes."""
        with self._timed("reward"):
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
            self._completions = completions
            args, num_ranks = self.args, self.args.num_ranks
            self._returns = [column[:, None].nan_to_num().expand(-1, num_ranks) / num_ranks for column in rewards.T]
            by_rank = [gather(self.reward_funcs[i].last_relevance.to(rewards.device)) for i in self._rank_rewards]
            for i, relevance in zip(self._rank_rewards, by_rank, strict=True):
                self._returns[i] = rank_returns(relevance, args.returns, args.return_gamma)
            if by_rank:
                weights = self.reward_weights.to(rewards.device)[self._rank_rewards]
                whole = (torch.stack(by_rank) * weights[:, None, None]).sum(0)
                spread = whole.std(dim=0) if len(rewards) > 1 else torch.zeros(num_ranks)
                for name, values in (("reward", whole.mean(dim=0)), ("reward_std", spread)):
                    self.record_metrics(
                        {f"{name}/rank_{k:02d}": value for k, value in enumerate(values.tolist(), start=1)}
                    )
        return rewards

    def _rank_advantages(self, num_generations: int) -> torch.Tensor:
        """Return the advantages of the ranks in all processes. Shape: (B, N)."""
        scale = self.args.scale_rewards != "none"
        parts = [rank_advantages(returns, num_generations, scale) for returns in self._returns]
        advantages = torch.stack(
            [weight * own for weight, own in zip(self.reward_weights.tolist(), parts, strict=True)]
        )
        whole = advantages.sum(0)
        flat = (whole == 0).view(-1, num_generations, whole.shape[1]).all(1)
        self.record_metrics({"frac_rank_zero_std": flat.float().mean()})
        return whole

    def _generate_and_score_completions(self, inputs: list[dict]) -> dict[str, Any]:
        """Return TRL's batch with the ranks of the tokens (B, T) and the advantages of the ranks (B, N) added."""
        self._rows = inputs
        batch = super()._generate_and_score_completions(inputs)
        ids, mask = batch["completion_ids"], batch["completion_mask"]
        is_eos = torch.isin(ids, torch.tensor(self.eos_token_ids, device=ids.device)) & mask.bool()
        args, by_newlines = self.args, segment_ranks(ids, mask, self._newline_counts)
        ranks = attach_eos(by_newlines, is_eos)
        lists = torch.stack([(is_eos & (ranks < args.num_ranks - 1)).any(1), (ranks >= args.num_ranks).any(1)])
        stops, overflow = self.accelerator.gather(lists.T.float()).mean(0).tolist()
        self.record_metrics({"lists/early_stop": stops, "lists/overflow": overflow})
        if not args.by_rank:  # a list is one unit
            return {**batch, "advantages": batch["advantages"][:, None], "ranks": ranks.clamp(max=0)}
        num_generations: Any = self.num_generations if self.model.training else self.num_generations_eval
        start = self.accelerator.process_index * len(inputs)
        advantages = self._rank_advantages(num_generations)[start : start + len(inputs)]
        is_public = args.algorithm == "rank_grpo_public"  # it counts a newline before EOS as an item
        ranks = by_newlines if is_public and not self._has_item_tokens else ranks
        ends = list_ends(ranks, is_eos, args.num_ranks, args.early_eos_penalty, args.exact_eos_reward)
        eos = is_eos & (ranks < args.num_ranks) & (is_public | self._has_item_tokens | (ends != 0)[:, None])
        return {**batch, "advantages": advantages, "ranks": ranks, "eos": eos, "eos_advantages": ends}

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the loss of one micro-batch, divided by the number of accumulated micro-batches."""
        args, training = self.args, self.model.training
        completion_ids, mask = inputs["completion_ids"], inputs["completion_mask"]
        attention_mask = torch.cat([inputs["prompt_mask"], mask], dim=1)
        steps = self.current_gradient_accumulation_steps if training else 1
        share = steps / args.steps_per_generation if training else 1  # share of the rollouts in one optimiser step
        with self._timed("forward"):
            logps, entropies, _ = self._get_per_token_logps_and_entropies(
                model,
                torch.cat([inputs["prompt_ids"], completion_ids], dim=1),
                attention_mask,
                completion_ids.size(1),
                compute_entropy=True,
            )
            num_items = inputs["num_items_in_batch"].clamp(min=1) * share / steps / self.accelerator.num_processes
            output = self._objective(logps, inputs, num_items)
        self.tokens += attention_mask.sum()
        size = mask.sum().clamp(min=1)
        metrics = {**output.metrics, "entropy": ((entropies * mask).sum() / size).detach()}
        local = torch.stack([value.float() for value in (*metrics.values(), size)])
        *values, sizes = self.accelerator.gather(local[None]).T  # each has one value per process
        self.record_metrics({name: (v * sizes).sum() / sizes.sum() for name, v in zip(metrics, values, strict=True)})
        return output.loss * inputs.get("weight", 1.0) / steps

    def _objective(self, logps: torch.Tensor, inputs: dict[str, Any], num_items: torch.Tensor) -> LossOutput:
        """Return the loss and the metrics of a micro-batch, given its log-probabilities (B, T).

        `num_items`: the tokens of the optimiser step divided by the number of its micro-batches in all processes.
        """
        old_logps = inputs.get("old_per_token_logps")
        is_corrected = self.args.vllm_importance_sampling_correction
        rollouts = Rollouts(
            old_logps=logps.detach() if old_logps is None else old_logps,
            advantages=inputs["advantages"],
            ranks=inputs["ranks"],
            mask=inputs["completion_mask"],
            ref_logps=inputs.get("ref_per_token_logps"),
            sampler_logps=inputs.get("sampling_per_token_logps") if is_corrected else None,
            eos=inputs.get("eos"),
            eos_advantages=inputs.get("eos_advantages"),
        )
        return rank_grpo_loss(logps, rollouts, self._loss_settings, num_items)
