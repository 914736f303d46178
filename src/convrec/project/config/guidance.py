"""The section `guidance`."""

from pydantic import Field

from convrec.project.config.base import Section, Whole


class GuidanceStage(Section):
    """Stage `guidance`: the evidence that guides constrained lists, and the weights of its kinds."""

    neighbours: int = Field(ge=1, le=100_000)
    kept: int = Field(ge=1, le=100_000)
    fit_prompts: Whole = Field(ge=0)
