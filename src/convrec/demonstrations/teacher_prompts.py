"""The LLM teacher's prompts: text files with fields in braces."""

import re
from collections.abc import Mapping
from pathlib import Path

from convrec.errors import InputError

# Required fields of each prompt; the words of the domain are allowed in all of them.
_NEEDED = {
    "recommend": {"list_length", "conversation"},
    "judge": {"conversation", "candidates"},
    "describe": {"title"},
    "describe_unknown": {"title", "passages"},
}
_FIELD = re.compile(r"\{(\w+)\}")  # other braces, as those of JSON, are text


class Prompts:
    """The files `recommend`, `judge`, `describe` and `describe_unknown` (`.txt`) of a folder, filled on demand.

    Each has the fields of `_NEEDED`, and may have those of the domain: its words by name, and `{Item}`, which is
    `{item}` with a capital. Raises `InputError` for a file that is missing, and for one that lacks a field or has an
    unknown one.
    """

    def __init__(self, folder: Path, domain: Mapping[str, str]):
        self._words = {**domain, "Item": domain["item"][:1].upper() + domain["item"][1:]}
        self._texts = {name: self._read(folder / f"{name}.txt", needed) for name, needed in _NEEDED.items()}

    def fill(self, name: str, **fields: str) -> str:
        """Return a prompt with its fields replaced; braces in their values stay as they are."""
        values = self._words | fields
        return _FIELD.sub(lambda field: values[field.group(1)], self._texts[name])

    def _read(self, path: Path, needed: set[str]) -> str:
        where = f"demonstrations.prompts: {path}"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            names = ", ".join(f"{name}.txt" for name in _NEEDED)
            raise InputError(f"{where}: not readable ({error.strerror}); the folder needs {names}") from None
        except UnicodeDecodeError:
            raise InputError(f"{where}: not UTF-8; convert the file to UTF-8") from None
        found, known = set(_FIELD.findall(text)), needed | self._words.keys()
        if needed - found:
            raise InputError(f"{where}: {{{min(needed - found)}}} is missing; the prompt needs it")
        if found - known:
            fields = ", ".join(f"{{{name}}}" for name in sorted(known))
            raise InputError(f"{where}: {{{min(found - known)}}} is unknown; it can have {fields}")
        return text
