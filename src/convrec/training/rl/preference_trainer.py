"""DPO, S-DPO and SPRec with the prompts, rollouts and batches of Rank-GRPO, without rewards and advantages."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.utils import use_adapter

from convrec.project.errors import InputError
from convrec.training.rl.arguments import Algorithm, RankGRPOConfig
from convrec.training.rl.constrained import RolloutConstraint
from convrec.training.rl.loss import LossOutput
from convrec.training.rl.preferences import PreferredLists, softmax_dpo_loss
from convrec.training.rl.rollouts import generate_groups
from convrec.training.rl.trainer import RankGRPOTrainer

_REFERENCE = "reference/model.safetensors"  # in a checkpoint of SPRec, apart from the weights of the policy


@dataclass
class PreferenceConfig(RankGRPOConfig):
    """The options of `PreferenceTrainer`. `beta` is β of the DPO loss.

    A group of `num_generations` lists is one preferred list and `num_generations - 1` rejected ones. The lists of a
    group share a micro-batch, each step needs new lists, and transformers writes them in one process: the section
    `rank_grpo` of the parameters is checked for that.
    """

    algorithm: Algorithm = "grpo"  # a list is one unit
    beta: float = 0.1
    rounds: int = 0  # of SPRec; 0: a fixed reference


class PreferenceTrainer(RankGRPOTrainer):
    """Trains on preferred and rejected lists: DPO, S-DPO (arXiv 2406.09215) or SPRec (arXiv 2412.09243).

    For each prompt the reference policy writes `num_generations - 1` lists under the constraint. These are rejected.
    The preferred list is the first of them with the items that the user liked moved to the top (`PreferredLists`). The
    loss is that of S-DPO, or with one rejected list that of DPO (`softmax_dpo_loss`). Log-probabilities are those of
    the sampled distribution, as in Rank-GRPO. The lists' rewards are logged, but not trained on.

    With `rounds` above 0 it is SPRec. Each round is a phase of SFT on the preferred lists, then a phase of DPO with the
    same number of steps. At the start of each phase the reference becomes a copy of the policy; a checkpoint holds it.
    """

    ref_model: Any
    _constraint: Any

    def __init__(
        self, model: Any, reward_funcs: Any, args: PreferenceConfig, constraint: RolloutConstraint, **kwargs: Any
    ):
        super().__init__(model, reward_funcs, args, constraint, **kwargs)
        self._preferred = PreferredLists(constraint.catalog, self._tokenizer)

    def _phase(self, step: int) -> int:
        """Return the phase of a step, both counted from 0: even phases are SFT, odd ones DPO."""
        return step * 2 * self.args.rounds // self.state.max_steps if self.args.rounds else 1

    def _complete(self, prompt_ids: list[list[int]], num_generations: int) -> list[list[int]]:
        """Return the token ids of each group's lists: the preferred one, then those of the reference."""
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
        margins = self.beta * (ratios[:, :1] - ratios[:, 1:]).detach()
        metrics = {"margin": margins.mean(), "accuracy": (margins > 0).float().mean(), "likelihood": likelihood}
        metrics = {f"preferences/{name}": value.detach() for name, value in metrics.items()}
        is_sft = self._phase(self.state.global_step) % 2 == 0
        return LossOutput(-likelihood if is_sft else softmax_dpo_loss(ratios, self.beta), metrics)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.rounds:
            path = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}" / _REFERENCE
            path.parent.mkdir(exist_ok=True)
            save_model(self.ref_model, str(path))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.args.rounds:
            path = Path(resume_from_checkpoint) / _REFERENCE
            if not path.is_file():
                raise InputError(f"{path} is missing; SPRec can continue only a checkpoint of SPRec")
            load_model(self.ref_model, str(path))
