"""The greedy lists of a saved model, with the settings that it answers under."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from convrec.config import Params
from convrec.device import pick_device
from convrec.generation.engine import TransformersEngine
from convrec.generation.prompts import PromptBuilder


@dataclass(frozen=True)
class Settings:
    """What belongs to a model's lists: the prompt's first line and longest length, theirs, and how they are decoded.

    Versions that were registered before a field came lack it, and answer with its default.
    """

    instruction: str | None
    list_length: int
    max_completion_length: int
    repetition_penalty: float = 1.0
    max_prompt_length: int | None = None

    @classmethod
    def of(cls, params: Params) -> "Settings":
        """Return the settings that the parameters give."""
        common = params.common
        return cls(
            common.instruction,
            common.list_length,
            params.evaluate.max_completion_length,
            common.repetition_penalty,
            common.max_prompt_length,
        )

    def prompts(self, tokenizer: Any) -> PromptBuilder:
        """Return what makes the prompts of a model with this tokenizer."""
        return PromptBuilder(tokenizer, self.instruction, self.list_length, self.max_prompt_length)


class ModelLists(NamedTuple):
    """One list a prompt, in order, and the share of the prompts that were cut."""

    texts: list[str]
    truncated_share: float


def model_lists(
    model: Path, rows: Sequence[dict[str, Any]], settings: Settings, device: str, batch_size: int
) -> ModelLists:
    """Return one greedy list for each canonical conversation row from the Hugging Face folder `model`."""
    engine = TransformersEngine.load(
        str(model), pick_device(device), batch_size, settings.max_completion_length, settings.repetition_penalty
    )
    builder = settings.prompts(engine.tokenizer)
    prompts = [builder(row["messages"]) for row in rows]
    share = builder.report(str(model))
    return ModelLists(engine.generate(prompts), share)
