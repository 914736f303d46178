"""The section `common`."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from convrec.project.config.base import LEAST_PROMPT, Section


def _instruction(text: str) -> str:
    if re.search(r"[{}]", re.sub(r"\{(?:list_length|items?)\}", "", text)):
        raise ValueError(f"{text!r} has braces beside {{list_length}}, {{item}} and {{items}}; remove them")
    return text


# Text inserted into prompts: one line, and no template.
Words = Annotated[str, Field(min_length=1, pattern=r"^[^{}\r\n]+$")]


class Domain(Section):
    """The words for the recommended items in prompts, the app and the model card."""

    item: Words
    items: Words
    release: Words
    people: Words

    def fill(self, instruction: str | None) -> str | None:
        """Return an instruction with `{item}` and `{items}` replaced; `{list_length}` stays."""
        return instruction and instruction.replace("{item}", self.item).replace("{items}", self.items)


class Common(Section):
    """Parameters that several stages share."""

    profile: str
    seed: int = Field(ge=0, lt=2**31)
    list_length: int = Field(ge=1, le=100)
    cutoffs: list[Annotated[int, Field(ge=1, le=100)]] = Field(min_length=1, max_length=100)
    domain: Domain
    instruction: Annotated[str, AfterValidator(_instruction)] | None
    max_prompt_length: int = Field(ge=LEAST_PROMPT, le=1_000_000)
    repetition_penalty: float = Field(ge=1, le=10)
    recommend_seen: bool
    device: Literal["auto", "cpu", "cuda"]

    @property
    def prompt_instruction(self) -> str | None:
        """The instruction with the domain's words, for prompts and registered versions; `{list_length}` stays."""
        return self.domain.fill(self.instruction)

    def prompt_parameters(self) -> dict[str, Any]:
        """Return the seed and the parameters of the prompts; trainings that differ in them share no checkpoints."""
        shared = self.model_dump(include={"seed", "list_length", "max_prompt_length"})
        return {**shared, "instruction": self.prompt_instruction}

    @model_validator(mode="after")
    def _cutoffs_within_list(self) -> "Common":
        if max(self.cutoffs) > self.list_length:
            raise ValueError(f"cutoffs reach {max(self.cutoffs)}, past list_length = {self.list_length}; lower them")
        return self
