"""Removes secrets from records and errors: values of secret environment variables, and credentials in URIs."""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

MASK = "***"
_SECRET_NAMES = ("_KEY", "_TOKEN", "_PASSWORD", "_SECRET", "_AUTH_STRING")
_SHORTEST = 6  # characters; shorter values occur in too many ordinary words
# The user of a URI and its password, which may itself have @ and / in it; else the user alone.
_CREDENTIALS = re.compile(r"""://(?:[^/\s@'":]*:[^\s'"]*|[^/\s@'"]+)@""")
_PARAMETERS = re.compile(r"""(?i)([?&][\w-]*(?:token|password|secret|api_?key|access_?key|signature)=)[^&\s'"#]+""")


def redactor(environment: Mapping[str, str] = os.environ) -> Callable[[str], str]:
    """Return a function that replaces the secrets of this environment and credentials in URIs by `***`."""
    secret = {value.strip() for name, value in environment.items() if name.upper().endswith(_SECRET_NAMES)}
    values = {value for value in secret if len(value) >= _SHORTEST}
    longest_first = sorted(values, key=len, reverse=True)
    secrets = re.compile("|".join(map(re.escape, longest_first))) if values else None

    def redact_text(text: str) -> str:
        text = _PARAMETERS.sub(rf"\1{MASK}", _CREDENTIALS.sub(f"://{MASK}@", text))
        return secrets.sub(MASK, text) if secrets else text

    return redact_text


def redact(text: str) -> str:
    """Return the text without the secrets of the current environment."""
    return redactor()(text)


def redact_all(value: Any, redact_text: Callable[[str], str]) -> Any:
    """Return the value with all strings in it redacted, including keys of mappings."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {redact_text(key): redact_all(item, redact_text) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_all(item, redact_text) for item in value]
    return value
