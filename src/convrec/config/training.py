"""The sections `base_model` and `sft`, and what all trainings share."""

from typing import Any, Literal

from pydantic import Field, model_validator

from convrec.config.base import FileBelow, Positive, Section, Share, Whole


class EmbeddedModel(Section):
    """The small Qwen2 that `name: embedded` makes."""

    vocab_size: int = Field(ge=300, le=1_000_000)
    hidden_size: int = Field(ge=16, le=65_536)
    intermediate_size: int = Field(ge=16, le=1_000_000)
    num_hidden_layers: int = Field(ge=1, le=1000)
    num_attention_heads: int = Field(ge=1, le=1024)
    num_key_value_heads: int = Field(ge=1, le=1024)
    conversations: Whole = Field(ge=1, description="training conversations among the texts it is trained on, at most")
    catalog_pages: Whole | None = Field(
        ge=0, description="pages of an index to the catalog among its texts; none: 12 an item, up to 6000"
    )
    co_occurrence: bool = Field(description="the vectors of titles start from who liked them together, not at random")
    num_train_epochs: Whole = Field(ge=0)
    learning_rate: Positive
    per_device_train_batch_size: Whole = Field(ge=1)

    @model_validator(mode="after")
    def _heads_divide(self) -> "EmbeddedModel":
        if self.hidden_size % self.num_attention_heads or self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads = {self.num_attention_heads} must divide hidden_size = {self.hidden_size} and "
                f"be a multiple of num_key_value_heads = {self.num_key_value_heads}"
            )
        return self


class BaseModelStage(Section):
    """Stage `base_model`: the model before any training on lists."""

    name: str = Field(description="'embedded', or a Hugging Face name or a path")
    revision: str | None = Field(description="commit of the Hugging Face model; pin it")
    trust_remote_code: bool = Field(
        description="run code that lies beside the weights of this model, or of any other that these parameters name "
        "(rank_grpo.start, rewards.model, evaluate --model); read it first"
    )
    dtype: Literal["float32", "bfloat16"]
    embedded: EmbeddedModel


class Lora(Section):
    """Low-rank adapters on every linear layer; they are merged into the model that the stage writes."""

    r: int = Field(ge=1, le=65_536, description="the rank")
    lora_alpha: Whole = Field(ge=1)
    lora_dropout: float = Field(ge=0, lt=1)


class Optimization(Section):
    """What both training stages share."""

    learning_rate: Positive
    lr_scheduler_type: Literal["constant", "cosine", "linear"]
    warmup_steps: float = Field(ge=0, description="below 1: a share of all steps; from 1 on: so many")
    adam_beta1: Share
    adam_beta2: Share
    weight_decay: float = Field(ge=0)
    max_grad_norm: Positive
    per_device_train_batch_size: int = Field(ge=1, le=65_536)
    gradient_accumulation_steps: Whole = Field(ge=1)
    logging_steps: Whole = Field(ge=1)
    save_steps: Whole = Field(ge=1)
    save_total_limit: Whole = Field(ge=2, description="checkpoints that are kept: the best, and the newest")
    gradient_checkpointing: bool


class Training(Optimization):
    """What of the two stages is no argument of their trainers."""

    lora: Lora | None = Field(description="none trains every weight")
    launch: FileBelow | None = Field(
        description="launch file of Accelerate for several processes, below configs/; none for one"
    )
    num_processes: int = Field(ge=1, le=1024, description="processes of such a launch, usually one a GPU")

    def in_one_process(self) -> dict[str, Any]:
        """Return the changes with which one process trains on the same effective batch."""
        factor = 1 if self.launch is None else self.num_processes
        accumulation = factor * self.gradient_accumulation_steps
        return {"launch": None, "num_processes": 1, "gradient_accumulation_steps": accumulation}


class SFT(Training):
    """Stage `sft`: the negative log-likelihood of the demonstrations."""

    num_train_epochs: float = Field(gt=0, description="the length of the schedule")
    checkpoint_step: Whole | None = Field(ge=1, description="stop at this step of the schedule; none for its end")
    max_length: int = Field(
        ge=16, le=1_000_000, description="tokens of prompt and completion; the prompt is cut to what it leaves"
    )
