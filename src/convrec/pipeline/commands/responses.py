"""`convrec parse` and `convrec remap`: a language model's answers, read, and grounded in a catalog."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from convrec.pipeline.commands import ANSWERS, app
from convrec.project.paths import Paths

Ratio = Annotated[float, Parameter(validator=Number(gt=0, lte=100))]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Answers:
    """Options of both commands.

    Args:
        responses: JSON lines of {conversation, response, seen?}.
        catalog: CSV, JSON lines, Parquet or pickle.
        min_ratio: Minimum ratio of a fuzzy title match with a matching year.
        min_ratio_without_year: Minimum ratio without a year.
    """

    responses: Path
    catalog: Path = Paths().catalog
    min_ratio: Ratio = 85.0
    min_ratio_without_year: Ratio = 97.0

    @property
    def grounding(self) -> tuple[float, float]:
        """The minimum ratios of a match with and without a year."""
        return self.min_ratio, self.min_ratio_without_year


@app.command(group=ANSWERS)
def parse(*, answers: Answers, out: Path | None = None) -> None:
    """Show the items parsed from a language model's answers, and the dropped lines.

    Example: convrec parse --responses answers.jsonl

    Args:
        out: Also write the result as JSON lines.
    """
    from convrec.demonstrations.responses import print_parsed

    for line in print_parsed(answers.responses, answers.catalog, answers.grounding, out):
        print(line)


@app.command(group=ANSWERS)
def remap(
    *,
    answers: Answers,
    out: Path,
    top: Annotated[int, Parameter(validator=Number(gte=1, lte=100_000))] = 20,
    embedder: str = "tfidf",
    conversation_weight: Annotated[float, Parameter(validator=Number(gte=0, lt=inf))] = 1.0,
) -> None:
    """Ground a language model's answers in a catalog; write items and scores.

    Example: convrec remap --responses answers.jsonl --out lists.jsonl

    Args:
        out: The same rows with `items` (rank, title, year, score, source).
        top: Items per list.
        embedder: tfidf, or the name of a sentence-transformers model.
        conversation_weight: The weight lambda of the conversation's similarity.
    """
    from convrec.demonstrations.responses import remap_responses

    print(
        remap_responses(
            answers.responses,
            answers.catalog,
            out,
            top=top,
            embedder=embedder,
            conversation_weight=conversation_weight,
            grounding=answers.grounding,
        )
    )
