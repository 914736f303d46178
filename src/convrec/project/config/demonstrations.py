"""The section `demonstrations`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from convrec.project.config.base import Month, Positive, Section, Share, Url, Whole


class BudgetParams(Section):
    """The teacher's budget for all calls in the project's cache; calls in flight may exceed it."""

    max_tokens: int | None = Field(ge=1, le=10**12, description="none for no limit")
    max_cost: float | None = Field(gt=0, description="none for no limit; in the currency of the prices")
    prompt_price: float = Field(ge=0, description="of a million prompt tokens")
    completion_price: float = Field(ge=0, description="of a million completion tokens")

    @model_validator(mode="after")
    def _cost_has_prices(self) -> "BudgetParams":
        if self.max_cost is not None and not self.prompt_price and not self.completion_price:
            raise ValueError(f"max_cost = {self.max_cost}, but both prices are 0; give prompt_price, completion_price")
        return self


class TeacherParams(Section):
    """The teacher that writes the raw lists and rates candidates."""

    kind: Literal["simulated", "similarity", "llm"]
    noise: float = Field(ge=0, description="simulated: standard deviation of its judgement errors, in units of utility")
    fault_rate: Share = Field(description="simulated: share of faulty lines")
    model: str | None = Field(description="llm: the model's name at the endpoint")
    base_url: Url | None = Field(description="llm: URL of an OpenAI-compatible endpoint; none for the default")
    temperature: float | None = Field(
        ge=0, le=2, description="none: the model's default, for models that accept no other"
    )
    max_completion_tokens: int = Field(
        ge=16, le=1_000_000, description="of one answer, including a reasoning model's reasoning tokens"
    )
    max_concurrency: int = Field(ge=1, le=1024, description="calls in flight")
    timeout_seconds: Positive
    max_retries: int = Field(
        ge=0, le=100, description="retries of one call after a timeout, lost connection, rate limit or server error"
    )
    max_failed: Share = Field(description="maximum share of prompts without an answer")
    budget: BudgetParams

    @model_validator(mode="after")
    def _llm_is_named(self) -> "TeacherParams":
        if self.kind == "llm" and not self.model:
            raise ValueError("model is empty; kind 'llm' needs the name of a chat model")
        return self


class EmbedderParams(Section):
    """The model that embeds items and conversations."""

    name: str = Field(description="'tfidf', or the name or folder of a sentence-transformers model")
    revision: str | None = Field(description="commit of the Hugging Face model; pin it")
    trust_remote_code: bool = Field(description="run the code in the model's repository; read it first")


Ratio = Annotated[float, Field(gt=0, le=100)]


class Remap(Section):
    """Remap: maps the teacher's titles to the catalog items that they name or resemble."""

    conversation_weight: float = Field(ge=0, description="lambda, the weight of the similarity to the conversation")
    min_ratio: Ratio = Field(description="minimum rapidfuzz ratio of a fuzzy match with a matching year")
    min_ratio_without_year: Ratio = Field(description="the same for a title without a year")


class Reflect(Section):
    """Reflect: the judge's ratings (-2..2) of the best candidates."""

    top: int = Field(ge=1, le=100_000, description="N_r, candidates that are rated")
    gamma: float = Field(ge=0, description="weight of a rating")
    candidates_per_call: int = Field(ge=1, le=100_000, description="llm: candidates rated in one call")


class Collaborative(Section):
    """Collaborative evidence: likes of people with similar conversations or similar likes."""

    fit_prompts: Whole = Field(
        ge=0, description="maximum number of training prompts for fitting the weights; 0 skips the step"
    )
    neighbours: int = Field(ge=1, le=100_000, description="number of most similar training conversations, which vote")
    kept: int = Field(ge=1, le=100_000, description="best items per prompt that each kind of evidence keeps")


class Adjust(Section):
    """Adjust: the popularity correction s = w * s + b."""

    epochs: Whole = Field(ge=0, description="maximum number of epochs; 0 skips Adjust")
    patience: Whole = Field(ge=1, description="epochs without a better likelihood on held_out before the fit stops")
    held_out: float = Field(ge=0, lt=1, description="share of the training prompts excluded from the fit")
    learning_rate: Positive
    batch_size: Whole = Field(ge=1)
    weight_penalty: float = Field(ge=0)
    bias_penalty: float = Field(ge=0)


class Demonstrations(Section):
    """Stage `demonstrations`: Remap, Reflect, collaborative evidence, Adjust."""

    until: Month | None = Field(description="last month whose training prompts get a demonstration; none for all")
    train_share: float = Field(gt=0, le=1, description="share of these prompts that get one")
    prompts: str = Field(description="folder of the LLM teacher's prompts; a dep of the stage")
    teacher: TeacherParams
    embedder: EmbedderParams
    remap: Remap
    reflect: Reflect
    collaborative: Collaborative
    adjust: Adjust
    variants: Whole = Field(
        ge=0, le=100, description="maximum number of variants per training prompt, without some of its earlier messages"
    )
    ground_truth_first: bool = Field(
        description="training demonstrations list the prompt's ground truth first, then the best other items"
    )
