"""Objects of JSON lines, without repeated keys: JSON readers silently keep only the last one."""

import json
import re
from collections.abc import Callable
from typing import Any

from convrec.project.errors import InputError

_SPACED = re.compile(rb"[ \t\r\n]:")


def json_object(line: bytes, where: str, loads: Callable[[str], Any] = json.loads) -> dict[str, Any]:
    """Return the JSON object of a line of a file; `where` names the line in the `InputError` if it is none."""
    try:
        value = loads(line.decode("utf-8"))
        repeated = repeated_key(line, value)
    except UnicodeDecodeError:
        raise InputError(f"{where}: not UTF-8; convert the file to UTF-8") from None
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at column {error.colno}"
        raise InputError(f"{where}: not JSON ({problem}); give one object per line") from None
    except (ValueError, RecursionError) as error:  # numbers with thousands of digits, unclosed brackets
        raise InputError(f"{where}: not readable JSON ({error}); mend it or remove it") from None
    if repeated is not None:
        raise InputError(f"{where}: field {repeated!r:.60} stands twice; remove one of the two")
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a JSON object, found {type(value).__name__}; give one object per line")
    return value


def repeated_key(text: bytes, value: Any) -> str | None:
    """Return a key that stands twice in an object of a JSON text, None where there is none; `value` is what was read.

    Raises `RecursionError` for a text with a repeated key, or a space before a colon, that is nested too deeply.
    """
    # Each key ends in `":`, but for spaces. Where these are no more than the keys that were read, none was lost: most
    # rows end here, after a microsecond or two.
    ends = text.count(b'":')
    unspaced = ends == text.count(b":") or not _SPACED.search(text)
    if unspaced and ((type(value) is dict and ends == len(value)) or ends == _num_keys(value)):
        return None
    repeated: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                repeated.append(key)
            seen.add(key)

    json.loads(text, object_pairs_hook=collect)
    return repeated[0] if repeated else None


def _num_keys(value: Any) -> int:
    number, left = 0, [value]
    for one in left:  # which grows
        if type(one) is dict:
            number += len(one)
            left += one.values()
        elif type(one) is list:
            left += one
    return number
