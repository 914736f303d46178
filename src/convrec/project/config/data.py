"""The section `data`."""

import datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from convrec.project.config.base import FileBelow, Section, Share, Whole
from convrec.project.config.period import PeriodText


class Synthetic(Section):
    """The embedded world's size and period."""

    num_conversations: int = Field(ge=30, le=1_000_000)
    num_months: int = Field(ge=3, le=120)


Policy = Literal["keep", "drop"]


class Checks(Section):
    """How rows with a problem are handled. All are counted; dropped ones go to the quarantine."""

    seen_truth: Policy
    duplicate_rows: Policy
    leaks: Policy


class Columns(Section):
    """The log's columns, None for the names of MovieLens, Amazon reviews and other common ones; the items' genres."""

    user: str | None = None
    item: str | None = None
    value: str | None = None
    time: str | None = None
    genres: str = "genres"


class Interactions(Section):
    """Source `interactions`: how a log is turned into conversations."""

    log: FileBelow | None
    columns: Annotated[Columns, BeforeValidator(lambda given: given or {})]
    liked: float | Annotated[list[str], Field(min_length=1)]
    disliked: float | list[str] | None
    prompts_per_user: Whole = Field(ge=1)
    max_prompts: int = Field(ge=1, le=10_000_000)

    @model_validator(mode="after")
    def _is_consistent(self) -> "Interactions":
        if self.disliked is not None and isinstance(self.liked, list) != isinstance(self.disliked, list):
            raise ValueError("liked and disliked: both are ratings, or both lists of events")
        if isinstance(self.liked, float) and isinstance(self.disliked, float) and self.disliked >= self.liked:
            raise ValueError(f"disliked = {self.disliked} is not below liked = {self.liked}; lower it")
        return self


class Redial(Section):
    """Source `redial`: what is ground truth, and whether the files are the splits."""

    ground_truth: Literal["liked", "recommended"]
    own_splits: bool


SourceName = Literal["synthetic", "redial", "reddit", "reddit_movie", "files", "interactions", "amazon", "feedback"]


class Data(Section):
    """Stage `data`: where conversations and catalog come from, and how they are split."""

    source: SourceName | Annotated[list[SourceName], Field(min_length=1)]
    path: str
    catalog: FileBelow | None
    line_column: str | None
    title_form: Literal["NFC", "NFKC"]
    max_quarantined: Share
    validation_period: PeriodText | None
    test_period: PeriodText | None
    held_out_share: Share = Field(le=0.5)
    checks: Checks
    redial: Redial
    synthetic: Synthetic
    interactions: Interactions

    @property
    def sources(self) -> list[SourceName]:
        """The names of the sources; the first gives the catalog."""
        return self.source if isinstance(self.source, list) else [self.source]

    @property
    def is_ordered(self) -> bool:
        """Whether all sources name what people liked in order of time."""
        return set(self.sources) <= {"interactions", "amazon"}

    def split_days(self) -> list[datetime.date]:
        """Return the days at whose beginning a split begins or ends; an empty list without periods."""
        return sorted({day for period in (self.validation_period, self.test_period) for day in period or ()})

    @model_validator(mode="after")
    def _source_is_complete(self) -> "Data":
        first, *others = self.sources
        if first == "feedback":
            raise ValueError(f"source = {self.source!r}: feedback has no catalog; give [SOURCE, feedback]")
        if len(set(self.sources)) < len(self.sources):
            raise ValueError(f"source = {self.source!r}: a source is given twice; remove one")
        for name in self.sources:
            if name in ("reddit", "files", "amazon") and not self.catalog:
                raise ValueError(f"catalog is empty; source {name!r} needs the name of its file in data.path")
        if others and (own := {"reddit", "amazon"} & set(self.sources)):
            raise ValueError(f"source = {self.source!r}: {min(own)} has splits of its own; use it alone")
        if self.line_column is not None and (not {"files", "interactions"} & set(self.sources) or not self.line_column):
            raise ValueError(
                f"line_column = {self.line_column!r} names a column of the catalog of source 'files' or "
                "'interactions'; give null"
            )
        if (self.validation_period is None) != (self.test_period is None):
            raise ValueError("set both validation_period and test_period, or set both to null")
        if first in ("synthetic", "reddit_movie") and not (self.validation_period and self.test_period):
            raise ValueError(f"set validation_period and test_period for the dated source {first!r}")
        if self.validation_period and self.test_period and self.validation_period.end > self.test_period.first:
            raise ValueError(
                f"validation_period = {self.validation_period} does not end before {self.test_period.first}"
            )
        return self
