"""API keys: a file of names and SHA-256 hashes."""

import hashlib
import logging
import re
import secrets
from pathlib import Path

from fastapi import HTTPException

from convrec.project.errors import InputError
from convrec.project.paths import regular

logger = logging.getLogger(__name__)

_NAME = r"[A-Za-z0-9._-]{1,64}"


class Keys:
    """The keys of a file with a line `NAME SHA256` for each, which is read at each request, so keys can be revoked."""

    def __init__(self, path: Path):
        """Raise `InputError` if the file cannot be read, or a line is no key."""
        self._path, self._problem = path, ""  # the problem as last logged
        _read(path)

    def known(self) -> dict[str, str]:
        """Return the names of the keys by their hash.

        Answers 503 while the file cannot be read or a line is no key; the log has the reason, once.
        """
        try:
            found, problem = _read(self._path), ""
        except InputError as error:
            found, problem = {}, str(error)
        if problem not in ("", self._problem):
            logger.error("no request is answered: %s", problem)
        self._problem = problem
        if problem:
            raise HTTPException(503, "the server cannot read its API keys; see its log")
        return found

    def check(self, authorization: str) -> str:
        """Return the name of the key in the header `Authorization`; answer 401 where there is none."""
        scheme, _, key = authorization.partition(" ")
        name = self.known().get(_hash(key.strip())) if scheme.lower() == "bearer" else None
        if name is None:
            reason = "the API key is missing or wrong; send `Authorization: Bearer KEY`"
            raise HTTPException(401, reason, {"WWW-Authenticate": "Bearer", "Connection": "close"})
        return name


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
        lines = regular(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--keys {path}: cannot be read ({error}); add a key with --new-key NAME") from None
    for number, line in enumerate(lines, start=1):
        if line.strip() and not re.fullmatch(rf"{_NAME} [0-9a-f]{{64}}", line.strip()):
            raise InputError(f"--keys {path}, line {number}: is not `NAME SHA256`; write it with --new-key")
    return {line.split()[1]: line.split()[0] for line in lines if line.strip()}
