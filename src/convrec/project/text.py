"""Text checks for files and terminals, and texts wrapped to the terminal's width."""

import re
import shutil
from collections.abc import Sequence

WIDTH = 100  # of the output where it is no terminal
# Control characters, lone surrogates, and marks that change the direction of the following text.
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def is_clean(text: str) -> bool:
    """Tell whether a text can be written to any file: without NUL, and without half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can write halves
        return False
    return "\0" not in text


def plain(text: str) -> str:
    """Return the text on one line, without characters that control the terminal."""
    return _STEERING.sub("\N{REPLACEMENT CHARACTER}", " ".join(text.split()))


def markdown(text: str) -> str:
    """Return the text on one line of Markdown, where HTML and the borders of tables stay text."""
    return plain(text).replace("<", "&lt;").replace("|", "\\|")


def columns(otherwise: int = WIDTH) -> int:
    """Return the width of the terminal, or `otherwise` if the output is no terminal."""
    return shutil.get_terminal_size((otherwise, 0)).columns


def hung(start: str, text: str) -> list[str]:
    """Return the text behind `start` in lines of at most the terminal's width, each indented as the first."""
    from rich.cells import cell_len  # noqa: PLC0415  (a registered model needs `plain` without rich)
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    indent = cell_len(start)
    lines = [line.plain.rstrip() for line in Text(text).wrap(Console(), max(columns() - indent, 10))]
    return [(start + lines[0]).rstrip(), *(" " * indent + line for line in lines[1:])]


def listing(heading: str, lines: Sequence[str], limit: int) -> list[str]:
    """Return the heading and, below it, up to `limit` lines and how many more there are; nothing without lines."""
    if not lines:
        return []
    more = [f"... and {len(lines) - limit:,} more"] if len(lines) > limit else []
    return [*hung("  ", heading), *(part for line in [*lines[:limit], *more] for part in hung("    ", plain(line)))]
