"""Reading YAML 1.2, as DVC does, within limits on size and depth.

A few hundred bytes of aliases can stand for more values than a computer holds; whoever writes to the tracking server,
or sends a folder, may have written such a file.
"""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from convrec.project.errors import InputError
from convrec.project.text import is_clean

MAX_BYTES = 2_000_000
MAX_NODES = 100_000  # values and keys; each alias counts as often as the value that it refers to
MAX_DEPTH = 50


class _BoundedComposer(Composer):
    """Composes a document; rejects one that exceeds the limits before any value is built."""

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None:
            _measure(node, {}, 1)
        return node


def _measure(node: Node, measured: dict[int, tuple[int, int]], depth: int) -> tuple[int, int]:
    """Return the number of nodes that a node stands for, and their depth.

    Each node is visited once, however many aliases lead to it; raises `ValueError` beyond the bounds.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels, or an alias inside the value that it refers to")
    if isinstance(node, ScalarNode):
        if not is_clean(node.value):
            raise ValueError(f"line {node.start_mark.line + 1} contains a NUL or an incomplete character")
        return 1, 1
    if id(node) not in measured:
        children = [part for pair in node.value for part in pair] if isinstance(node, MappingNode) else node.value
        sizes = [_measure(child, measured, depth + 1) for child in children]
        measured[id(node)] = 1 + sum(size for size, _ in sizes), 1 + max((levels for _, levels in sizes), default=0)
    size, levels = measured[id(node)]
    if depth + levels - 1 > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if size > MAX_NODES:
        raise ValueError(f"more than {MAX_NODES:,} values, counting each alias as the value that it refers to")
    return size, levels


def parse_yaml(content: bytes | str, where: str, *, keep_comments: bool = False) -> Any:
    """Return the value of a YAML text; with `keep_comments` one that can be changed and written with its comments.

    Raises `InputError`, which names `where`, for what is no YAML and for what is beyond the bounds.
    """
    if len(content) > MAX_BYTES:
        raise InputError(f"{where}: {len(content):,} bytes of YAML; at most {MAX_BYTES:,} are read")
    yaml = YAML(typ="rt" if keep_comments else "safe", pure=True)
    yaml.Composer = _BoundedComposer
    try:
        return yaml.load(content)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = " ".join(" ".join(filter(None, (error.context, error.problem))).split())
        raise InputError(f"{where}: not YAML ({problem}{place}); correct it") from None
    except RecursionError:
        raise InputError(f"{where}: YAML nested deeper than {MAX_DEPTH} levels; correct it") from None
    except (YAMLError, ValueError) as error:  # dates such as 2022-99-99, numbers of thousands of digits, the bounds
        problem = str(error).partition("\n")[0][:200]
        raise InputError(f"{where}: not usable as YAML ({problem}); correct it") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping of a YAML file (under YAML 1.1, `1e-4` would be a string).

    Raises `InputError` for a file that is not there, and for one that holds anything else (see `parse_yaml`).
    """
    value = parse_yaml(_content(path), str(path))
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a mapping of sections, found {type(value).__name__}")
    return value


def read_commented_yaml(path: Path) -> Any:
    """Return the mapping of a YAML file as one that is written with its comments; raises as `read_yaml` does."""
    read_yaml(path)
    return parse_yaml(_content(path), str(path), keep_comments=True)


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; run the command in the project folder") from None
