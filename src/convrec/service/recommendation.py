"""The recommendations for one conversation: objects, a table, JSON, or a data frame."""

import json
from dataclasses import asdict, dataclass

import pandas as pd

from convrec.data.titles import line
from convrec.project.text import plain


@dataclass(frozen=True)
class Recommendation:
    """One item of a list; `score` is the mean log-probability of its tokens without the constraint, in nats."""

    rank: int
    title: str
    year: int | None
    score: float

    def __str__(self) -> str:
        return line(self.title, self.year)


class RecommendedList(list[Recommendation]):
    """The recommendations of one conversation, best first; it prints as a table."""

    def __str__(self) -> str:
        lines = [plain(str(item)) for item in self]
        width = max([len("item"), *map(len, lines)])
        rows = [f"{item.rank:>4}  {text:<{width}}  {item.score:>7.3f}" for item, text in zip(self, lines, strict=True)]
        return "\n".join([f"rank  {'item':<{width}}    score", *rows])

    __repr__ = __str__

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each recommendation: rank, title, year (missing if unknown), score."""
        frame = pd.DataFrame([asdict(item) for item in self], columns=["rank", "title", "year", "score"])
        return frame.astype({"year": "Int64"})

    def to_json(self) -> str:
        """Return a JSON array of objects."""
        return json.dumps([asdict(item) for item in self], ensure_ascii=False, indent=1)
