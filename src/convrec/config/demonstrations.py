"""The section `demonstrations`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from convrec.config.base import Month, Positive, Section, Share, Url, Whole


class BudgetParams(Section):
    """What the teacher may spend, over all calls that the project's cache holds."""

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
    """Who writes the raw lists, and who judges."""

    kind: Literal["simulated", "similarity", "llm"]
    noise: float = Field(ge=0, description="simulated: spread of its errors of judgement, in units of utility")
    fault_rate: Share = Field(description="simulated: share of lines with a fault")
    model: str | None = Field(description="llm: the model's name at the endpoint")
    base_url: Url | None = Field(description="llm: an OpenAI-compatible endpoint; none for the default one")
    temperature: float | None = Field(ge=0, le=2, description="none: the model's own, where it accepts no other")
    max_completion_tokens: int = Field(
        ge=16, le=1_000_000, description="of one answer, a reasoning model's thoughts included"
    )
    max_concurrency: int = Field(ge=1, le=1024, description="calls in flight")
    timeout_seconds: Positive
    max_retries: int = Field(ge=0, le=100, description="of one call, after rate limits, server errors, broken answers")
    max_failed: Share = Field(description="share of the prompts asked at a time that may stay without an answer")
    budget: BudgetParams

    @model_validator(mode="after")
    def _llm_is_named(self) -> "TeacherParams":
        if self.kind == "llm" and not self.model:
            raise ValueError("model is empty; kind 'llm' needs the name of a chat model")
        return self


class EmbedderParams(Section):
    """What turns items and conversations into vectors."""

    name: str = Field(description="'tfidf', or the name or folder of a sentence-transformers model")
    revision: str | None = Field(description="commit of the Hugging Face model; pin it")
    trust_remote_code: bool = Field(description="run code that lies beside the model's weights; read it first")


Ratio = Annotated[float, Field(gt=0, le=100)]


class Remap(Section):
    """Remap: the catalog items that the teacher's titles name or resemble."""

    conversation_weight: float = Field(ge=0, description="lambda, of the similarity to the conversation")
    min_ratio: Ratio = Field(description="of a fuzzy match whose year fits (rapidfuzz ratio)")
    min_ratio_without_year: Ratio = Field(description="of one for a title without a year")


class Reflect(Section):
    """Reflect: the judge's ratings (-2..2) of the best candidates."""

    top: int = Field(ge=1, le=100_000, description="N_r, candidates that are rated")
    gamma: float = Field(ge=0, description="weight of a rating")
    candidates_per_call: int = Field(ge=1, le=100_000, description="llm: candidates rated in one call")


class Collaborative(Section):
    """Collaborative evidence: what people with similar conversations and similar likes liked."""

    fit_prompts: Whole = Field(ge=0, description="training prompts that the weights are fitted on, 0 for no evidence")
    neighbours: int = Field(ge=1, le=100_000, description="training conversations that vote")
    kept: int = Field(ge=1, le=100_000, description="items of a prompt that each kind of evidence tells apart")


class Adjust(Section):
    """Adjust: the popularity correction s = w * s + b."""

    epochs: Whole = Field(ge=0, description="at most; 0 leaves Adjust out")
    patience: Whole = Field(ge=1, description="stop after so many epochs without a better likelihood on held_out")
    held_out: float = Field(ge=0, lt=1, description="share of the training prompts that it is not fitted on")
    learning_rate: Positive
    batch_size: Whole = Field(ge=1)
    weight_penalty: float = Field(ge=0)
    bias_penalty: float = Field(ge=0)


class Demonstrations(Section):
    """Stage `demonstrations`: Remap, Reflect, collaborative evidence, Adjust."""

    until: Month | None = Field(description="training prompts up to this month get a demonstration; none for all")
    train_share: float = Field(gt=0, le=1, description="the share of them that does")
    prompts: str = Field(description="folder of the LLM teacher's prompts; a dep of the stage")
    teacher: TeacherParams
    embedder: EmbedderParams
    remap: Remap
    reflect: Reflect
    collaborative: Collaborative
    adjust: Adjust
    ground_truth_first: bool = Field(
        description="a training demonstration begins with the ground truth of its own prompt; then come the best others"
    )
