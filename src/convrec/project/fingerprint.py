"""Cache keys: a short digest of parameters and files together."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def fingerprint(parameters: dict[str, Any], inputs: Iterable[Path]) -> str:
    """Return 16 hexadecimal digits of the parameters and of the inputs' names and bytes; a folder is all its files."""
    digest = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode())
    for path in inputs:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            digest.update(file.name.encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()[:16]
