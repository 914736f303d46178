"""Tables of texts, for the terminal and as Markdown."""

from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from convrec.project.text import columns, markdown

_WORD = 10  # letters of a word that stays whole where the terminal has room for it


class TextTable(NamedTuple):
    """A header, rows of as many cells, and a title above; columns after the first `left` are aligned to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    left: int = 1

    def print(self, otherwise: int = 80) -> None:
        """Print the table in the width of the terminal, or `otherwise`; cells wrap where it does not fit."""
        table = Table(title=self.title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        least: list[int] = []
        for place, name in enumerate(self.header):
            cells = [row[place] for row in self.rows if place < len(row)]
            is_word = all(len(cell.split()) < 2 and len(cell) <= 2 * _WORD for cell in cells)  # it stays whole
            table.add_column(name, justify="left" if place < self.left else "right", overflow="fold", no_wrap=is_word)
            longest = max(len(word) for cell in (name, *cells) for word in cell.split())
            least.append(longest if is_word else min(longest, _WORD))
        console = Console(highlight=False, markup=False, width=columns(otherwise))
        if sum(least) + 2 * len(least) + 1 <= console.width:
            for column, width in zip(table.columns, least, strict=True):
                column.min_width = width
        for row in self.rows:
            table.add_row(*row)
        console.print(table)

    def markdown(self) -> str:
        """Return the title in bold, if there is one, and the table."""
        rule = ["---" if place < self.left else "---:" for place in range(len(self.header))]
        lines = [self.header, rule, *(list(map(markdown, row)) for row in self.rows)]
        head = [f"**{self.title}**", ""] if self.title else []
        return "\n".join([*head, *(f"| {' | '.join(cells)} |" for cells in lines), ""])
