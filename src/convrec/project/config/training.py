"""The sections `base_model`, `sft` and `guidance`, and what all trainings share."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from convrec.project.config.base import FileBelow, Positive, Section, Unkeyed, Whole


class EmbeddedModel(Section):
    """The small Qwen2 model of `name: embedded`."""

    vocab_size: int = Field(ge=300, le=1_000_000)
    hidden_size: int = Field(ge=32, le=65_536, multiple_of=32)
    num_hidden_layers: int = Field(ge=1, le=1000)
    conversations: Whole = Field(ge=0)
    catalog_pages: Whole | None = Field(ge=0)
    co_occurrence: bool


class BaseModelStage(Section):
    """Stage `base_model`: the model before any training on lists."""

    name: str
    revision: str | None
    trust_remote_code: Annotated[bool, Unkeyed()]
    dtype: Literal["float32", "bfloat16"]
    embedded: EmbeddedModel


class Lora(Section):
    """Low-rank adapters on every linear layer; the stage merges them into the model that it writes."""

    r: int = Field(ge=1, le=65_536)
    lora_alpha: Whole = Field(ge=1)
    lora_dropout: float = Field(ge=0, lt=1)


class Optimization(Section):
    """Parameters of both training stages."""

    learning_rate: Positive
    per_device_train_batch_size: Annotated[int, Unkeyed()] = Field(ge=1, le=65_536)  # see `Training.keyed`
    gradient_accumulation_steps: Annotated[Whole, Unkeyed()] = Field(ge=1)
    save_steps: Annotated[Whole, Unkeyed("sft")] = Field(ge=1)  # Rank-GRPO validates then, too
    gradient_checkpointing: Annotated[bool, Unkeyed()]


class Training(Optimization):
    """Parameters of both stages that are not arguments of the trainers."""

    lora: Lora | None
    launch: Annotated[FileBelow | None, Unkeyed()]
    num_processes: Annotated[int, Unkeyed()] = Field(ge=1, le=1024)

    @property
    def rows_per_step(self) -> int:
        """The sequences of one optimizer step: the effective batch size."""
        processes = self.num_processes if self.launch is not None else 1
        return self.per_device_train_batch_size * self.gradient_accumulation_steps * processes

    def keyed(self, stage: str) -> dict[str, Any]:
        """Return the fields that can change what is trained: of the batch its size, but not how it is split."""
        size = {"rows_per_step": self.rows_per_step} if "launch" in self.model_fields_set else {}  # else: few fields
        return {**super().keyed(stage), **size}

    def in_one_process(self) -> dict[str, Any]:
        """Return the parameters with which one process trains with the same effective batch size."""
        factor = 1 if self.launch is None else self.num_processes
        accumulation = factor * self.gradient_accumulation_steps
        return {"launch": None, "num_processes": 1, "gradient_accumulation_steps": accumulation}


class SFT(Training):
    """Stage `sft`: the negative log-likelihood of what people liked, and of demonstrations."""

    weight_decay: float = Field(ge=0)
    likes: bool
    lists: Literal["remap", "reflect", "collaborative", "adjust"]
    demonstration_weight: float = Field(ge=0)
    num_train_epochs: float = Field(gt=0)
    checkpoint_step: Whole | None = Field(ge=1)
    max_length: int = Field(ge=16, le=1_000_000)
    validation_prompts: Whole = Field(ge=1)  # also of Rank-GRPO

    @model_validator(mode="after")
    def _something_is_learned(self) -> "SFT":
        if not self.likes and not self.demonstration_weight:
            raise ValueError("likes = false and demonstration_weight = 0.0 leave nothing to learn; change one of them")
        return self


class GuidanceStage(Section):
    """Stage `guidance`: the evidence's weight beside the model."""

    fit_prompts: Whole = Field(ge=0)
