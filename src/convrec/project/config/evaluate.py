"""The sections `evaluate` and `report`."""

from typing import Literal

from pydantic import Field

from convrec.project.config.base import Section, Whole


class Evaluate(Section):
    """Stage `evaluate`: greedy lists on the test split."""

    engine: Literal["transformers", "vllm"]
    batch_size: Whole = Field(ge=1, description="lists generated at the same time")
    vllm_tensor_parallel_size: int = Field(ge=1, le=1024, description="number of GPUs that vLLM uses for the model")
    vllm_gpu_memory_utilization: float = Field(gt=0, lt=1, description="share of the GPU memory that vLLM may use")
    max_completion_length: int = Field(ge=8, le=1_000_000)
    bootstrap_samples: int = Field(ge=100, le=100_000)
    constrained: bool = Field(description="also evaluate SFT and Rank-GRPO under the catalog constraint")
    max_prompts: Whole | None = Field(
        ge=1, description="evaluate only the first max_prompts test prompts; none for all"
    )


class Report(Section):
    """Stage `report`."""

    num_examples: int = Field(ge=0, le=100)
    num_failures: int = Field(ge=0, le=100)
