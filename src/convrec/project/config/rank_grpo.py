"""The section `rank_grpo`."""

import json
from typing import Annotated, Literal

from pydantic import Field, model_validator

from convrec.project.config.base import Month, Positive, Section, Unkeyed, Url, Whole
from convrec.project.config.training import Training

BY_RANK = ("rank_grpo", "rank_grpo_public")  # the algorithms with `returns` and EOS penalties


class Rewards(Section):
    """The weights of the rewards beside relevance, to which they are added."""

    model: str | None


class Decay(Section):
    """A learning rate that applies from a step on."""

    step: Whole = Field(ge=1)
    learning_rate: Positive


Algorithm = Literal["rank_grpo", "rank_grpo_public", "grpo", "gspo", "dr_grpo", "dapo", "dpo"]


class RankGRPO(Training):
    """Stage `rank_grpo`. The optimiser steps once on `batch * accumulation` completions (times processes)."""

    lr_scheduler_type: Literal["constant", "cosine", "linear"]
    max_steps: Whole | None = Field(ge=1)
    num_train_epochs: float = Field(gt=0)
    decay: Decay | None
    algorithm: Algorithm
    start: Annotated[str, Unkeyed("base_model")] = Field(min_length=1)
    since: Month | None
    rewards: Rewards
    returns: str = Field(pattern=r"^(exp_inf|log|exp:\d+(\.\d+)?)$")
    num_generations: int = Field(ge=2, le=1024)
    beta: float = Field(ge=0)
    epsilon: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=2, max_length=2)] | None
    rollouts: Literal["transformers", "vllm_colocate", "vllm_server"]
    constrained: Annotated[bool, Unkeyed("base_model")]
    vllm_server_base_url: Annotated[Url | None, Unkeyed()]

    @model_validator(mode="after")
    def _consistent(self) -> "RankGRPO":
        if self.return_gamma is not None and self.return_gamma <= 1:
            raise ValueError(f"returns = {self.returns!r}: GAMMA must be above 1")
        if self.decay is not None and self.lr_scheduler_type != "constant":
            raise ValueError("decay is a schedule of its own; set lr_scheduler_type to constant")
        if self.rollouts == "vllm_server" and not self.vllm_server_base_url:
            raise ValueError("vllm_server_base_url is empty; rollouts 'vllm_server' needs it")
        if self.lora is not None and self.lora.lora_dropout:
            value = self.lora.lora_dropout
            raise ValueError(
                f"lora.lora_dropout = {value}: sampling and scoring must use the same weights; set it to 0.0"
            )
        if self.algorithm == "dpo":
            self._check_dpo()
        completions, factors = self.per_device_train_batch_size * self.gradient_accumulation_steps, ""
        if self.launch is not None:
            completions, factors = completions * self.num_processes, " * num_processes"
        if self.algorithm != "dpo" and completions % self.num_generations:
            batch = f"per_device_train_batch_size * gradient_accumulation_steps{factors} = {completions}"
            raise ValueError(f"{batch} is no multiple of num_generations = {self.num_generations}; change one of them")
        return self

    @property
    def name(self) -> str:
        """The algorithm's name in `convrec compare`: grpo, rank_grpo:exp_inf, rank_grpo:exp:2.0."""
        return f"{self.algorithm}:{self.returns}" if self.algorithm in BY_RANK else self.algorithm

    @property
    def return_gamma(self) -> float | None:
        """The discount of the returns `exp`."""
        return float(self.returns.removeprefix("exp:")) if self.returns.startswith("exp:") else None

    def _check_dpo(self) -> None:
        needed = {"constrained": True, "rollouts": "transformers", "launch": None}
        for name, value in needed.items():
            if getattr(self, name) != value:
                given = f"{name} = {json.dumps(getattr(self, name))}"
                raise ValueError(f"{given}: algorithm 'dpo' needs another value; set it to {json.dumps(value)}")
        if self.per_device_train_batch_size % self.num_generations:
            size = f"per_device_train_batch_size = {self.per_device_train_batch_size}"
            raise ValueError(f"{size} is no multiple of num_generations = {self.num_generations}; change one of them")
