"""The quarantine: unusable rows with their reasons; too many of them are an error."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from convrec.project.errors import InputError

LEAKS = "train"  # source of the training rows that repeat held-out conversations; nothing is wrong with them
_LONGEST_VALUE = 500  # characters
_SHOWN = 60  # characters of a value in an error


def printable(text: str) -> str:
    """Return the text without what no file can hold: NUL and halves of characters are written as escapes."""
    return text.encode(errors="backslashreplace").decode().replace("\0", r"\0")


def as_text(value: object) -> str:
    """Return any value as text, including values that Python refuses to print."""
    try:
        return str(value)
    except (ValueError, RecursionError):  # numbers with thousands of digits, unclosed brackets
        return f"a {type(value).__name__} that is too large to show"


@dataclass
class Quarantine:
    """Rows that were left out, by what they are rows of: catalog, turns, interactions, groundtruth, seen_titles, train.

    `num_read` counts all rows that were read, the usable ones too.
    """

    rows: list[dict[str, str]] = field(default_factory=list)
    num_read: Counter[str] = field(default_factory=Counter)

    def add(self, source: str, row: int | str, reason: str, value: object) -> None:
        """Add an unusable row: its place, the reason, and the beginning of its value."""
        text = printable(as_text(value)[:_LONGEST_VALUE])
        self.rows.append({"source": source, "row": printable(str(row)), "reason": reason, "value": text})

    def count(self, source: str, number: int = 1) -> None:
        """Count rows that were read."""
        self.num_read[source] += number

    def write(self, path: Path) -> None:
        """Write the rows as Parquet: source, row, reason, value."""
        pd.DataFrame(self.rows, columns=["source", "row", "reason", "value"], dtype="str").to_parquet(path, index=False)

    def summary(self) -> str:
        """Return the number of quarantined rows for each reason."""
        return "; ".join(f"{source}: {reason}: {n}" for (source, reason), n in self.reasons().most_common())

    def reasons(self) -> Counter[tuple[str, str]]:
        """Return the number of rows by source and reason."""
        return Counter((row["source"], row["reason"]) for row in self.rows)

    def examples(self, source: str) -> str:
        """Return the most common reasons of a source, each with its number of rows and the first of them."""
        rows = [row for row in self.rows if row["source"] == source]
        reasons = Counter(row["reason"] for row in rows)
        first = {row["reason"]: f"row {row['row']}: {row['value'][:_SHOWN]!r}" for row in reversed(rows)}
        return "; ".join(f"{reason}: {n}, such as {first[reason]}" for reason, n in reasons.most_common(5))

    def shares(self) -> dict[str, float]:
        """Return the share of quarantined rows of each source."""
        number = Counter(row["source"] for row in self.rows)
        return {key: number[key] / max(self.num_read[key], number[key], 1) for key in sorted(number | self.num_read)}

    def check(self, max_share: float, path: Path) -> None:
        """Raise `InputError` if a larger share of the rows of any source, but for leaks, is in the quarantine."""
        for source, share in self.shares().items():
            if share > max_share and source != LEAKS:
                number = sum(row["source"] == source for row in self.rows)
                raise InputError(
                    f"{source}: {number} of {self.num_read[source]} rows cannot be used, a share of {share:.3f}, "
                    f"above data.max_quarantined = {max_share} ({self.examples(source)}); look at {path}, then mend "
                    "the files or raise the limit"
                )
