"""The section `data`."""

import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from convrec.config.base import LARGEST, FileBelow, Month, Section, Share, Whole


class Synthetic(Section):
    """The embedded world's size and period."""

    num_conversations: int = Field(ge=30, le=1_000_000)
    first_month: Month
    num_months: int = Field(ge=3, le=120)


Policy = Literal["keep", "drop"]


class Checks(Section):
    """What becomes of rows that have a problem: each is counted, and what is dropped goes to the quarantine."""

    outside_catalog: Policy = Field(description="ground truth that the catalog does not hold, so that no list can hit")
    seen_truth: Policy = Field(description="ground truth that the conversation has named, so that no list can hit")
    duplicate_rows: Policy = Field(description="rows that equal an earlier one in every column")
    leaks: Policy = Field(description="training rows whose conversation, or nearly its text, is held out")
    similarity: Share = Field(ge=0.5, description="of texts that are nearly the same: Jaccard index of their 5-grams")


class Columns(Section):
    """The names of a log's columns; none for those of MovieLens, of the Amazon reviews, and other common ones."""

    user: str | None
    item: str | None
    value: str | None = Field(description="ratings or events; a log without such a column is one of liked items")
    time: str | None


class Interactions(Section):
    """Source `interactions`: what of a log becomes conversations."""

    log: FileBelow | None = Field(description="name of the log's file in data.path; none where it has a known name")
    columns: Columns
    liked: float | Annotated[list[str], Field(min_length=1)] = Field(
        description="an item is liked from this rating on, or by one of these events"
    )
    disliked: float | list[str] | None = Field(description="and disliked up to this rating, or by these events")
    min_liked: int = Field(ge=1, le=100, description="liked items that a conversation names, the most recent ones")
    max_liked: int = Field(ge=1, le=100)
    max_disliked: int = Field(ge=0, le=100, description="disliked ones that it names, the most recent ones")
    num_truths: int = Field(ge=1, le=1000, description="ground truth: at most so many of the next liked items")
    window_days: float | None = Field(gt=0, description="and within so many days of the first; none for no limit")
    prompts_per_user: Whole = Field(ge=1, description="conversations of one user, at most")
    max_prompts: int = Field(ge=1, le=10_000_000, description="users are drawn until there are about so many")
    genres: str = Field(description="column of the items whose most frequent values a conversation may name")
    templates: FileBelow | None = Field(
        description="file of templates in data.path; none for the shipped histories.txt"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> "Interactions":
        if self.min_liked > self.max_liked:
            raise ValueError(f"min_liked = {self.min_liked} is more than max_liked = {self.max_liked}; lower it")
        if self.disliked is not None and isinstance(self.liked, list) != isinstance(self.disliked, list):
            raise ValueError(
                f"liked = {self.liked}, disliked = {self.disliked}: both are ratings, or both lists of events"
            )
        if isinstance(self.liked, float) and isinstance(self.disliked, float) and self.disliked >= self.liked:
            raise ValueError(f"disliked = {self.disliked} is not below liked = {self.liked}; lower it")
        return self


class Data(Section):
    """Stage `data`: where conversations and catalog come from, and how they are split."""

    source: Literal["synthetic", "redial", "reddit", "reddit_movie", "files", "interactions"]
    path: str = Field(description="folder of the source's files; a dep of the stage; synthetic reads nothing there")
    catalog: FileBelow | None = Field(description="reddit, files, interactions: name of the catalog's file there")
    line_column: str | None = Field(
        description="files, interactions: column of the catalog that becomes part of an item's line"
    )
    min_upvotes: Whole = Field(ge=-LARGEST, description="reddit_movie: an answer with fewer is no ground truth")
    max_quarantined: Share = Field(description="the stage fails when a larger share of any kind of rows is left out")
    validation_month: Month | None = Field(description="dated sources: validation rows are of this month")
    test_month: Month | None = Field(description="dated sources: test rows are of this month")
    validation_share: Share = Field(
        description="split by conversation, or interactions by user: without months, or where no row has a date"
    )
    test_share: Share
    checks: Checks
    synthetic: Synthetic
    interactions: Interactions

    def split_months(self) -> list[str]:
        """Return the months at whose beginning a split begins or ends; none without months."""
        if not (self.validation_month and self.test_month):
            return []
        months = [datetime.date.fromisoformat(f"{month}-01") for month in (self.validation_month, self.test_month)]
        after = [(month + datetime.timedelta(days=31)).strftime("%Y-%m") for month in months]
        return sorted({self.validation_month, self.test_month, *after})

    @model_validator(mode="after")
    def _source_is_complete(self) -> "Data":
        if self.source in ("reddit", "files") and not self.catalog:
            raise ValueError(f"catalog is empty; source {self.source!r} needs the name of its file in data.path")
        if self.line_column is not None and (self.source not in ("files", "interactions") or not self.line_column):
            raise ValueError(
                f"line_column = {self.line_column!r} names a column of the catalog of source 'files' or "
                "'interactions'; give null"
            )
        if (self.validation_month is None) != (self.test_month is None):
            raise ValueError("validation_month and test_month belong together; give both, or null for both")
        if self.source in ("synthetic", "reddit_movie") and not (self.validation_month and self.test_month):
            raise ValueError(f"validation_month and test_month are needed for the dated source {self.source!r}")
        if self.validation_month and self.test_month and self.validation_month >= self.test_month:
            raise ValueError(f"validation_month {self.validation_month} is not before test_month {self.test_month}")
        return self
