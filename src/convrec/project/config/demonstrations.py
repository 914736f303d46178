"""The section `demonstrations`."""

from typing import Literal

from pydantic import Field, model_validator

from convrec.project.config.base import Month, Section, Share, Url, Whole


class TeacherParams(Section):
    """The teacher that writes the raw lists and rates candidates."""

    kind: Literal["simulated", "similarity", "llm"]
    model: str | None
    base_url: Url | None
    temperature: float | None = Field(ge=0, le=2)
    max_completion_tokens: int = Field(ge=16, le=1_000_000)
    max_concurrency: int = Field(ge=1, le=1024)
    max_failed: Share
    token_budget: int | None = Field(ge=1, le=10**12)

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


class Adjust(Section):
    """Adjust: the popularity correction s = w * s + b."""

    epochs: Whole = Field(ge=0)
    batch_size: Whole = Field(ge=1)


class Demonstrations(Section):
    """Stage `demonstrations`: Remap, Reflect, the evidence, Adjust."""

    until: Month | None
    train_share: float = Field(gt=0, le=1)
    teacher: TeacherParams
    embedder: EmbedderParams
    fit_prompts: Whole = Field(ge=0)
    adjust: Adjust
