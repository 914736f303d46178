"""The section `rank_grpo`."""

import json
from typing import Literal

from pydantic import Field, model_validator

from convrec.project.config.base import Month, Positive, Section, Share, Url, Whole
from convrec.project.config.training import Training

BY_RANK = ("rank_grpo", "rank_grpo_public")  # the algorithms with `returns` and EOS penalties


class Rewards(Section):
    """The weights of the rewards, which are summed."""

    relevance: float = Field(ge=0, description="of a rank: the user liked its item")
    grounded: float = Field(ge=0, description="weight, per rank: an exact catalog line, neither seen nor repeated")
    model: str | None = Field(
        description="per list: a Hugging Face sequence classification model that scores it; null for none"
    )
    model_weight: float
    model_spread: Literal["ranks", "sequence"] = Field(
        description="the model's reward s enters each rank's return as s/N, or each rank's advantage by its own"
    )

    @model_validator(mode="after")
    def _some_rank_reward(self) -> "Rewards":
        if not any(weight for name, weight in self if not name.startswith("model")):
            raise ValueError("the weights of all rewards per rank are 0; set at least one, for instance relevance")
        return self


Algorithm = Literal["rank_grpo", "rank_grpo_public", "grpo", "gspo", "dr_grpo", "dapo", "dpo", "sdpo", "sprec"]
PREFERENCES = ("dpo", "sdpo", "sprec")  # the algorithms that use the section `preferences`


class Preferences(Section):
    """Parameters of dpo, sdpo and sprec, which compare a preferred list with lists of the model."""

    beta: float | None = Field(gt=0, description="beta of the loss; null for the published value: 0.1, or 1.0 for sdpo")
    learning_rate: Positive | None = Field(description="none for rank_grpo.learning_rate")
    negatives: int = Field(ge=1, le=1023, description="sdpo: rejected lists per preferred list; others: 1")
    rounds: int = Field(
        ge=1, le=10_000, description="sprec: number of rounds, each SFT and then DPO against the current model"
    )


class RankGRPO(Training):
    """Stage `rank_grpo`. The optimiser steps once on `batch * accumulation` completions (times processes)."""

    max_steps: Whole | None = Field(ge=1, description="optimiser steps; null: num_train_epochs decides")
    num_train_epochs: float = Field(gt=0, description="passes over the training rows; used if max_steps is null")
    decay_step: Whole | None = Field(ge=1, description="decayed_learning_rate applies from this step on")
    decayed_learning_rate: float | None = Field(gt=0)
    algorithm: Algorithm = Field(
        description="rank_grpo_public: averages and treats EOS as the authors' public code does"
    )
    preferences: Preferences
    start: str = Field(
        min_length=1,
        description="'sft'; a Hugging Face name or folder; a registry version (models:/NAME/VERSION or @ALIAS); "
        "or a trainer's checkpoint, which the training continues",
    )
    since: Month | None = Field(description="first month of the training conversations; null for all")
    rewards: Rewards
    returns: Literal["exp_inf", "exp", "log"]
    return_gamma: float | None = Field(description="Gamma > 1 of `exp` returns")
    num_generations: int = Field(ge=2, le=1024, description="G")
    num_iterations: Whole = Field(ge=1, description="mu; 1 is on-policy")
    beta: float = Field(ge=0, description="weight of the KL penalty to the policy that training starts from")
    epsilon: Share | None = Field(description="null: the algorithm's published value; also for epsilon_high")
    epsilon_high: float | None = Field(ge=0)
    delta: float | None = Field(
        gt=1, description="upper limit of the unclipped ratio (two-sided clipping); null for none"
    )
    overflow_penalty: float = Field(le=0, description="epsilon_o, the advantage of tokens after rank N")
    early_eos_penalty: float = Field(le=0, description="epsilon_u, the advantage of an early EOS")
    exact_eos_reward: float | None = Field(
        ge=0,
        description="advantage of the EOS after exactly N items; null: the published 0, or 0.1 with rank_grpo_public",
    )
    aggregation: Literal["rank", "token", "grpo", "bnpo", "dr_grpo", "dapo"] | None
    normalization: Literal["group", "within_list"]
    temperature: Positive
    max_completion_length: int = Field(ge=8, le=1_000_000)
    rollouts: Literal["transformers", "beam", "vllm_colocate", "vllm_server"]
    constrained: bool = Field(description="rollouts contain only distinct, unseen catalog items")
    vllm_gpu_memory_utilization: float = Field(
        gt=0, lt=1, description="vllm_colocate: share of the GPU memory that vLLM may use"
    )
    vllm_server_base_url: Url | None = Field(description="vllm_server: its URL, for instance http://127.0.0.1:8000")
    vllm_importance_sampling_clip_max: Positive = Field(
        description="maximum of the importance weights that correct vLLM's log-probabilities"
    )
    validation_steps: Whole = Field(ge=1, description="steps between validations")
    validation_prompts: Whole = Field(ge=1, description="number of validation prompts used")
    sample_steps: Whole = Field(ge=1, description="steps between records of sample lists of one group")
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
                f"lora.lora_dropout = {self.lora.lora_dropout}: sampling and scoring must use the same "
                "distribution, so dropout is off; set it to 0.0"
            )
        if self.constrained and self.rollouts.startswith("vllm"):
            raise ValueError(f"constrained = true: not with rollouts {self.rollouts!r}; use transformers or beam")
        for name in ("save_steps", "validation_steps"):
            if getattr(self, name) % self.num_iterations:
                raise ValueError(
                    f"{name} = {getattr(self, name)} is no multiple of num_iterations = {self.num_iterations}; "
                    "a checkpoint between the updates of one batch of rollouts cannot be resumed exactly"
                )
        if self.algorithm in PREFERENCES:
            self._check_preferences()
        completions, factors = self.per_device_train_batch_size * self.gradient_accumulation_steps, ""
        if self.launch is not None and self.rollouts != "beam":  # one process searches all beams of a group
            completions, factors = completions * self.num_processes, " * num_processes"
        if self.algorithm not in PREFERENCES and completions % self.num_generations:
            raise ValueError(
                f"per_device_train_batch_size * gradient_accumulation_steps{factors} = {completions} is no multiple of "
                f"num_generations = {self.num_generations}; every group must be whole"
            )
        return self

    @property
    def name(self) -> str:
        """The algorithm's name in `convrec compare`: grpo, rank_grpo:exp_inf, rank_grpo:exp:2.0."""
        if self.algorithm not in BY_RANK:
            return self.algorithm
        gamma = f":{self.return_gamma}" if self.returns == "exp" else ""
        return f"{self.algorithm}:{self.returns}{gamma}"

    @property
    def group_size(self) -> int:
        """The number of lists per prompt in a step."""
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
