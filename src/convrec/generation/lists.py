"""The greedy lists of a saved model, with the settings that it answers under."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convrec.config import Params
from convrec.data.conversations import build_prompt
from convrec.device import pick_device
from convrec.generation.engine import TransformersEngine


@dataclass(frozen=True)
class Settings:
    """What belongs to a model's lists: the prompt's first line, their length, and how they are decoded."""

    instruction: str | None
    list_length: int
    max_completion_length: int
    repetition_penalty: float = 1.0

    @classmethod
    def of(cls, params: Params) -> "Settings":
        """Return the settings that the parameters give."""
        common = params.common
        return cls(
            common.instruction,
            common.list_length,
            params.evaluate.max_completion_length,
            common.repetition_penalty,
        )


def model_lists(
    model: Path, rows: Sequence[dict[str, Any]], settings: Settings, device: str, batch_size: int
) -> list[str]:
    """Return one greedy list for each canonical conversation row from the Hugging Face folder `model`."""
    engine = TransformersEngine.load(
        str(model), pick_device(device), batch_size, settings.max_completion_length, settings.repetition_penalty
    )
    return engine.generate([build_prompt(row["messages"], settings.instruction, settings.list_length) for row in rows])
