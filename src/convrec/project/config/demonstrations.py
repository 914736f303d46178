"""The section `demonstrations`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from convrec.project.config.base import Month, Positive, Section, Share, Url, Whole


class BudgetParams(Section):
    """The teacher's budget for all calls in the project's cache; calls in flight may exceed it."""

    max_tokens: int | None = Field(ge=1, le=10**12)
    max_cost: float | None = Field(gt=0)
    prompt_price: float = Field(ge=0)
    completion_price: float = Field(ge=0)

    @model_validator(mode="after")
    def _cost_has_prices(self) -> "BudgetParams":
        if self.max_cost is not None and not self.prompt_price and not self.completion_price:
            raise ValueError(f"max_cost = {self.max_cost}, but both prices are 0; give prompt_price, completion_price")
        return self


class TeacherParams(Section):
    """The teacher that writes the raw lists and rates candidates."""

    kind: Literal["simulated", "similarity", "llm"]
    noise: float = Field(ge=0)
    fault_rate: Share
    model: str | None
    base_url: Url | None
    temperature: float | None = Field(ge=0, le=2)
    max_completion_tokens: int = Field(ge=16, le=1_000_000)
    max_concurrency: int = Field(ge=1, le=1024)
    timeout_seconds: Positive
    max_retries: int = Field(ge=0, le=100)
    max_failed: Share
    budget: BudgetParams

    @model_validator(mode="after")
    def _llm_is_named(self) -> "TeacherParams":
        if self.kind == "llm" and not self.model:
            raise ValueError("model is empty; kind 'llm' needs the name of a chat model")
        return self


class EmbedderParams(Section):
    """The model that embeds items and conversations."""

    name: str
    revision: str | None
    trust_remote_code: bool


Ratio = Annotated[float, Field(gt=0, le=100)]


class Remap(Section):
    """Remap: maps the teacher's titles to the catalog items that they name or resemble."""

    conversation_weight: float = Field(ge=0)
    min_ratio: Ratio
    min_ratio_without_year: Ratio


class Reflect(Section):
    """Reflect: the judge's ratings (-2..2) of the best candidates."""

    top: int = Field(ge=1, le=100_000)
    gamma: float = Field(ge=0)
    candidates_per_call: int = Field(ge=1, le=100_000)


class Collaborative(Section):
    """Collaborative evidence: likes of people with similar conversations or similar likes."""

    fit_prompts: Whole = Field(ge=0)
    neighbours: int = Field(ge=1, le=100_000)
    kept: int = Field(ge=1, le=100_000)


class Adjust(Section):
    """Adjust: the popularity correction s = w * s + b."""

    epochs: Whole = Field(ge=0)
    patience: Whole = Field(ge=1)
    held_out: float = Field(ge=0, lt=1)
    learning_rate: Positive
    batch_size: Whole = Field(ge=1)
    weight_penalty: float = Field(ge=0)
    bias_penalty: float = Field(ge=0)


class Demonstrations(Section):
    """Stage `demonstrations`: Remap, Reflect, collaborative evidence, Adjust."""

    until: Month | None
    train_share: float = Field(gt=0, le=1)
    prompts: str
    teacher: TeacherParams
    embedder: EmbedderParams
    remap: Remap
    reflect: Reflect
    collaborative: Collaborative
    adjust: Adjust
    variants: Whole = Field(ge=0, le=100)
    ground_truth_first: bool
