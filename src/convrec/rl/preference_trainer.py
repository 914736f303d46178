"""DPO, S-DPO and SPRec on the lists, prompts and batches of Rank-GRPO: no reward, no advantage."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.utils import use_adapter

from convrec.errors import InputError
from convrec.rl.arguments import Algorithm, RankGRPOConfig
from convrec.rl.constrained import RolloutConstraint
from convrec.rl.loss import LossOutput
from convrec.rl.preferences import PreferredLists, softmax_dpo_loss
from convrec.rl.rollouts import generate_groups
from convrec.rl.trainer import RankGRPOTrainer

_REFERENCE = "reference/model.safetensors"  # in a checkpoint of SPRec


@dataclass
class PreferenceConfig(RankGRPOConfig):
    """A group of `num_generations` lists is a preferred one and the reference's; `beta` is that of the loss.

    Raises `ValueError` where a group could be parted, or used twice.
    """

    algorithm: Algorithm = field(default="grpo", metadata={"help": "a list is one unit"})
    beta: float = field(default=0.1, metadata={"help": "β of DPO and S-DPO"})
    rounds: int = field(default=0, metadata={"help": "of SPRec; 0 for none: the reference stays what it is"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by_rank or not self.beta:
            raise ValueError(f"algorithm = {self.algorithm!r}, beta = {self.beta}; leave 'grpo', and beta above 0")
        if self.per_device_train_batch_size % (self.num_generations or 1):
            raise ValueError(
                f"per_device_train_batch_size = {self.per_device_train_batch_size} is no multiple of num_generations = "
                f"{self.num_generations}; the lists of a prompt are compared in one forward pass"
            )
        if self.num_iterations != 1 or self.steps_per_generation != self.gradient_accumulation_steps:
            raise ValueError("num_iterations and steps_per_generation are not honoured; each step has lists of its own")
        if self.world_size > 1 or self.use_vllm or self.beam_groups:
            raise ValueError("preferences are trained in one process, with the plain rollouts of transformers")


class PreferenceTrainer(RankGRPOTrainer):
    """The RankGRPOTrainer for lists that are compared with each other.

    For each prompt the reference policy writes `num_generations - 1` lists under the constraint, which are rejected;
    the preferred list is the first of them with what the user liked moved to its top (`PreferredLists`). The loss is
    that of S-DPO, with one rejected list that of DPO (`softmax_dpo_loss`). Log-probabilities are of the distribution
    that is sampled, as in Rank-GRPO. Rewards of the lists are logged, and not trained on.

    With `rounds` it is SPRec (arXiv 2412.09243): each round is a phase of SFT on the preferred lists, then one of DPO,
    of as many steps. With each phase the policy becomes the reference, so that a phase of DPO begins at its own
    reference and rejects what that writes.
    """

    ref_model: Any
    _constraint: Any

    def __init__(
        self, model: Any, reward_funcs: Any, args: PreferenceConfig, constraint: RolloutConstraint, **kwargs: Any
    ):
        super().__init__(model, reward_funcs, args, constraint, **kwargs)
        self._preferred = PreferredLists(constraint.catalog, self._tokenizer)
        if args.rounds and self.ref_model is None:
            raise ValueError(f"rounds = {args.rounds}: SPRec changes the weights of its reference; adapters have none")

    def _phase(self, step: int) -> int:
        """Return the phase that a step belongs to, both counted from 0: SFT where even, DPO where odd."""
        return step * 2 * self.args.rounds // self.state.max_steps if self.args.rounds else 1

    def _complete(self, prompt_ids: list[list[int]], num_generations: int) -> list[list[int]]:
        """Return the lists of each group: the preferred one, then those of the reference."""
        step = self.state.global_step
        if step and self._phase(step) != self._phase(step - 1):
            self.ref_model.load_state_dict(self.accelerator.unwrap_model(self.model).state_dict())
        asked = [prompt for i, prompt in enumerate(prompt_ids) if i % num_generations]
        has_adapters = self.ref_model is None  # without them the policy is the reference
        unwrapped = unwrap_model_for_generation(self.model if has_adapters else self.ref_model, self.accelerator)
        with unwrapped as model, use_adapter(model, adapter_name=None) if has_adapters else nullcontext():
            written = iter(generate_groups(model, asked, self.generation_config, self._constraint))
        lists = []
        for first in range(0, len(prompt_ids), num_generations):
            rejected = [next(written) for _ in range(num_generations - 1)]
            banned = self._constraint.request(prompt_ids[first]).banned
            lists += [self._preferred.prefer(rejected[0], self._scored.rows[first]["groundtruth"], banned), *rejected]
        return lists

    def _objective(self, logps: torch.Tensor, inputs: dict[str, Any], num_items: torch.Tensor) -> LossOutput:
        """Return the loss of the groups of a micro-batch. Shape: logps (B, T), 0 on padding."""
        mask = inputs["completion_mask"]
        groups = (-1, self.num_generations if self.model.training else self.num_generations_eval)
        totals, ratios = (
            (values * mask).sum(dim=1).view(groups) for values in (logps, logps - inputs["ref_per_token_logps"])
        )
        likelihood = totals[:, 0].sum() / mask.sum(dim=1).view(groups)[:, 0].sum()
        margins = self.beta * (ratios[:, :1] - ratios[:, 1:]).detach()
        is_sft = self._phase(self.state.global_step) % 2 == 0
        loss = -likelihood if is_sft else softmax_dpo_loss(ratios, self.beta)
        metrics = {"margin": margins.mean(), "accuracy": (margins > 0).float().mean(), "likelihood": likelihood}
        return LossOutput(loss, {f"preferences/{name}": value.detach() for name, value in metrics.items()})

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.rounds:
            path = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}" / _REFERENCE
            path.parent.mkdir(exist_ok=True)  # of a save that was cut short
            save_model(self.ref_model, str(path))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.args.rounds:
            path = Path(resume_from_checkpoint) / _REFERENCE
            if not path.is_file():
                raise InputError(f"{path} is missing; SPRec continues checkpoints of SPRec alone")
            load_model(self.ref_model, str(path))
