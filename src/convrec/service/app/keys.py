"""API keys: a file of names and SHA-256 hashes."""

import hashlib
import re
import secrets
from pathlib import Path
from typing import Annotated

from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from convrec.project.errors import InputError
from convrec.service.app.edge import facts_of

_NAME = r"[A-Za-z0-9._-]{1,64}"
_Given = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


class Keys:
    """The keys of a file with a line `NAME SHA256` for each, which is read at each request, so keys can be revoked."""

    def __init__(self, path: Path):
        """Raise `InputError` if the file cannot be read, or a line is no key."""
        self._path = path
        _read(path)

    def name_of(self, key: str) -> str | None:
        """Return the name of a key, else None."""
        return _read(self._path).get(_hash(key))

    def check(self, request: Request, given: _Given) -> None:
        """Answer 401 to a request without a key; a dependency of routes."""
        name = None if given is None else self.name_of(given.credentials.strip())
        if name is None:
            reason = "the API key is missing or wrong; send `Authorization: Bearer KEY`"
            raise HTTPException(401, reason, {"WWW-Authenticate": "Bearer"})
        facts_of(request)["key"] = name


def new_key(path: Path, name: str) -> str:
    """Append a new key to the file and return it; it is not stored and cannot be shown again.

    Raises `InputError` if the name is not usable or already has a key.
    """
    if not re.fullmatch(_NAME, name):
        raise InputError(f"--new-key {name!r:.80}: give 1 to 64 letters, digits, `.`, `_` or `-`")
    if path.exists() and name in _read(path).values():
        raise InputError(f"--new-key {name}: {path} has a key of this name; give another, or remove its line first")
    key = secrets.token_urlsafe(32)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{name} {_hash(key)}\n")
    return key


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()  # unsalted: a random key of 256 bits cannot be guessed


def _read(path: Path) -> dict[str, str]:
    """Return the names of the keys by their hash."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--keys {path}: cannot be read ({error}); add a key with --new-key NAME") from None
    for number, line in enumerate(lines, start=1):
        if line.strip() and not re.fullmatch(rf"{_NAME} [0-9a-f]{{64}}", line.strip()):
            raise InputError(f"--keys {path}, line {number}: is not `NAME SHA256`; write it with --new-key")
    return {line.split()[1]: line.split()[0] for line in lines if line.strip()}
