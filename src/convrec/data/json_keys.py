"""Repeated keys in a JSON object: JSON readers silently keep only the last one."""

import json
import re
from typing import Any

_SPACED = re.compile(rb"[ \t\r\n]:")


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
