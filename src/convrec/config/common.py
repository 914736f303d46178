"""The section `common`."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from convrec.config.base import LEAST_PROMPT, Section


def _instruction(text: str) -> str:
    if re.search(r"[{}]", re.sub(r"\{(?:list_length|items?)\}", "", text)):
        raise ValueError(f"{text!r} has braces beside {{list_length}}, {{item}} and {{items}}; remove them")
    return text


# What stands in prompts without being a template itself, and in one line.
Words = Annotated[str, Field(min_length=1, pattern=r"^[^{}\r\n]+$")]


class Domain(Section):
    """What is recommended, in the words of the prompts, the app and the model card."""

    item: Words = Field(description="one item: movie, book, board game")
    items: Words = Field(description="several of them")
    release: Words = Field(description="how an item comes out, as in 'original release title and year': publication")
    people: Words = Field(description="who makes an item, as the teacher is asked to name them: the author")

    def fill(self, instruction: str | None) -> str | None:
        """Return an instruction with `{item}` and `{items}` replaced; `{list_length}` stays."""
        return instruction and instruction.replace("{item}", self.item).replace("{items}", self.items)


class Common(Section):
    """What several stages share."""

    profile: str = Field(description="the profile that these parameters came from; only a label")
    seed: int = Field(ge=0, lt=2**31)
    list_length: int = Field(ge=1, le=100, description="N, the ranks of a list")
    cutoffs: list[Annotated[int, Field(ge=1, le=100)]] = Field(
        min_length=1, max_length=100, description="K of Recall@K and NDCG@K"
    )
    domain: Domain
    instruction: Annotated[str, AfterValidator(_instruction)] | None = Field(
        description="the prompt's first line, {list_length}, {item} and {items} replaced (see `prompt_instruction`); "
        "none where the source's messages hold it"
    )
    max_prompt_length: int = Field(
        ge=LEAST_PROMPT,
        le=1_000_000,
        description="tokens of a prompt, its chat template included; beyond, the oldest turns go",
    )
    repetition_penalty: float = Field(
        ge=1, le=10, description="of decoding, in rollouts too: what the text holds already scores lower; 1 is none"
    )
    recommend_seen: bool = Field(
        description="what a conversation names, but not as disliked, may be recommended and is then counted"
    )
    device: Literal["auto", "cpu", "cuda"]

    @property
    def prompt_instruction(self) -> str | None:
        """The instruction in the domain's words, as prompts and registered versions hold it; `{list_length}` stays."""
        return self.domain.fill(self.instruction)

    def prompt_parameters(self) -> dict[str, Any]:
        """Return the seed and what decides the prompts: trainings that differ in these share no checkpoints."""
        shared = self.model_dump(include={"seed", "list_length", "max_prompt_length"})
        return {**shared, "instruction": self.prompt_instruction}

    @model_validator(mode="after")
    def _cutoffs_within_list(self) -> "Common":
        if max(self.cutoffs) > self.list_length:
            raise ValueError(f"cutoffs reach {max(self.cutoffs)}, past list_length = {self.list_length}; lower them")
        return self
