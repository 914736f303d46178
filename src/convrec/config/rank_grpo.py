"""The section `rank_grpo`."""

import json
from typing import Literal

from pydantic import Field, model_validator

from convrec.config.base import Month, Positive, Section, Share, Url, Whole
from convrec.config.training import Training

BY_RANK = ("rank_grpo", "rank_grpo_public")  # the algorithms that `returns` and the penalties of EOS belong to


class Rewards(Section):
    """What a list is rewarded for: the weighted sum."""

    relevance: float = Field(ge=0, description="of a rank: the user liked its item")
    grounded: float = Field(ge=0, description="of a rank: a catalog line to the letter, neither seen nor repeated")
    model: str | None = Field(description="of a list: a Hugging Face sequence classification model; none for none")
    model_weight: float
    model_spread: Literal["ranks", "sequence"] = Field(
        description="the model's reward s enters each rank's return as s/N, or each rank's advantage by its own"
    )

    @model_validator(mode="after")
    def _some_rank_reward(self) -> "Rewards":
        if not self.relevance and not self.grounded:
            raise ValueError("relevance and grounded are both 0; a reward by rank is needed")
        return self


Algorithm = Literal["rank_grpo", "rank_grpo_public", "grpo", "gspo", "dr_grpo", "dapo", "dpo", "sdpo", "sprec"]
PREFERENCES = ("dpo", "sdpo", "sprec")  # the algorithms that the section of that name belongs to


class Preferences(Section):
    """What dpo, sdpo and sprec have beside the rest: they compare a preferred list with the model's own."""

    beta: float | None = Field(gt=0, description="of the loss; none for the published one: 0.1, of sdpo 1.0")
    learning_rate: Positive | None = Field(description="none for rank_grpo.learning_rate")
    negatives: int = Field(ge=1, le=1023, description="sdpo: the model's lists beside each preferred one; others: 1")
    rounds: int = Field(ge=1, le=10_000, description="sprec: rounds of SFT, then DPO against the model so far")


class RankGRPO(Training):
    """Stage `rank_grpo`. The optimiser steps once on `batch * accumulation` completions (times processes)."""

    max_steps: Whole | None = Field(ge=1, description="optimiser steps; none to go by num_train_epochs")
    num_train_epochs: float = Field(gt=0, description="passes over the training rows, where max_steps is none")
    decay_step: Whole | None = Field(ge=1, description="from this step on the rate is decayed_learning_rate")
    decayed_learning_rate: float | None = Field(gt=0)
    algorithm: Algorithm = Field(description="rank_grpo_public: as the authors' code averages and treats EOS")
    preferences: Preferences
    start: str = Field(
        min_length=1,
        description="'sft'; a Hugging Face name or folder; a registry version (models:/NAME/VERSION or @ALIAS); "
        "or a trainer's checkpoint, which is continued",
    )
    since: Month | None = Field(description="train on conversations from this month on; none for all")
    rewards: Rewards
    returns: Literal["exp_inf", "exp", "log"]
    return_gamma: float | None = Field(description="Gamma > 1 of `exp` returns")
    num_generations: int = Field(ge=2, le=1024, description="G")
    num_iterations: Whole = Field(ge=1, description="mu; 1 is on-policy")
    beta: float = Field(ge=0, description="weight of the KL penalty to the policy that training starts from")
    epsilon: Share | None = Field(description="none for the algorithm's published one; so too below")
    epsilon_high: float | None = Field(ge=0)
    delta: float | None = Field(gt=1, description="cap of the unclipped ratio (two-sided clip); none for no cap")
    overflow_penalty: float = Field(le=0, description="epsilon_o, the advantage of tokens past rank N")
    early_eos_penalty: float = Field(le=0, description="epsilon_u, the advantage of an EOS that comes early")
    exact_eos_reward: float | None = Field(
        ge=0, description="advantage of the EOS of a list of exactly N; none as published: 0, of rank_grpo_public 0.1"
    )
    aggregation: Literal["rank", "token", "grpo", "bnpo", "dr_grpo", "dapo"] | None
    normalization: Literal["group", "within_list"]
    temperature: Positive
    max_completion_length: int = Field(ge=8, le=1_000_000)
    rollouts: Literal["transformers", "beam", "vllm_colocate", "vllm_server"]
    constrained: bool = Field(description="rollouts hold nothing but catalog items, each once, none seen")
    vllm_gpu_memory_utilization: float = Field(gt=0, lt=1, description="vllm_colocate: its share of the GPU's memory")
    vllm_server_base_url: Url | None = Field(description="vllm_server: where it listens, e.g. http://127.0.0.1:8000")
    vllm_importance_sampling_clip_max: Positive = Field(
        description="vLLM: cap of the weights that correct for its log-probabilities"
    )
    validation_steps: Whole = Field(ge=1, description="validation is measured every so many steps")
    validation_prompts: Whole = Field(ge=1, description="on so many validation prompts")
    sample_steps: Whole = Field(ge=1, description="some lists of a group are recorded every so many steps")
    output_checkpoint: Literal["best", "last"] = Field(description="best: by validation NDCG")

    @model_validator(mode="after")
    def _consistent(self) -> "RankGRPO":
        if self.returns == "exp" and not (self.return_gamma and self.return_gamma > 1):
            raise ValueError(f"return_gamma = {self.return_gamma}; returns 'exp' need a value above 1")
        if (self.decay_step is None) != (self.decayed_learning_rate is None):
            raise ValueError(
                f"decay_step = {self.decay_step} and decayed_learning_rate = {self.decayed_learning_rate}; "
                "give both or neither"
            )
        if self.decay_step is not None and (self.lr_scheduler_type != "constant" or self.warmup_steps):
            raise ValueError(
                f"decay_step = {self.decay_step} is a schedule of its own; set lr_scheduler_type = "
                f"{self.lr_scheduler_type!r} to 'constant' and warmup_steps = {self.warmup_steps} to 0.0"
            )
        if self.rollouts == "vllm_server" and not self.vllm_server_base_url:
            raise ValueError("vllm_server_base_url is empty; rollouts 'vllm_server' needs it")
        if self.lora is not None and self.lora.lora_dropout:
            raise ValueError(
                f"lora.lora_dropout = {self.lora.lora_dropout}: lists are sampled and scored without dropout, so that "
                "both are of one distribution; set it to 0.0"
            )
        if self.constrained and self.rollouts.startswith("vllm"):
            raise ValueError(f"constrained = true: not with rollouts {self.rollouts!r}; use transformers or beam")
        for name in ("save_steps", "validation_steps"):
            if getattr(self, name) % self.num_iterations:
                raise ValueError(
                    f"{name} = {getattr(self, name)} is no multiple of num_iterations = {self.num_iterations}; "
                    "a checkpoint amid the updates of one batch of rollouts could not be resumed exactly"
                )
        if self.algorithm in PREFERENCES:
            self._check_preferences()
        completions, factors = self.per_device_train_batch_size * self.gradient_accumulation_steps, ""
        if self.launch is not None and self.rollouts != "beam":  # a beam group is one search in one process
            completions, factors = completions * self.num_processes, " * num_processes"
        if self.algorithm not in PREFERENCES and completions % self.num_generations:
            raise ValueError(
                f"per_device_train_batch_size * gradient_accumulation_steps{factors} = {completions} is no multiple of "
                f"num_generations = {self.num_generations}; every group must be whole"
            )
        return self

    @property
    def name(self) -> str:
        """The algorithm as `convrec compare` names it: grpo, rank_grpo:exp_inf, rank_grpo:exp:2.0."""
        if self.algorithm not in BY_RANK:
            return self.algorithm
        gamma = f":{self.return_gamma}" if self.returns == "exp" else ""
        return f"{self.algorithm}:{self.returns}{gamma}"

    @property
    def group_size(self) -> int:
        """The lists of one prompt in a step."""
        if self.algorithm not in PREFERENCES:
            return self.num_generations
        return 1 + (self.preferences.negatives if self.algorithm == "sdpo" else 1)

    def _check_preferences(self) -> None:
        needed = {"constrained": True, "rollouts": "transformers", "num_iterations": 1, "launch": None}
        for name, value in needed.items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"{name} = {json.dumps(getattr(self, name))}: algorithm {self.algorithm!r} compares catalog lists "
                    f"that one process samples for each step; set it to {json.dumps(value)}"
                )
        if self.per_device_train_batch_size % self.group_size:
            raise ValueError(
                f"per_device_train_batch_size = {self.per_device_train_batch_size} is no multiple of "
                f"{self.group_size}, the lists of a prompt with algorithm {self.algorithm!r}; they are compared in "
                "one forward pass"
            )
        if self.algorithm == "sprec":
            if self.lora is not None:
                raise ValueError("lora: algorithm 'sprec' changes the reference's weights; set it to null")
            if self.max_steps is not None and self.max_steps < 2 * self.preferences.rounds:
                raise ValueError(
                    f"max_steps = {self.max_steps} has no room for preferences.rounds = {self.preferences.rounds} of "
                    f"two phases each; raise it to {2 * self.preferences.rounds}, or lower rounds"
                )
