"""`make audit`: every locked version can be looked up, and what is accepted is named with its reason."""

import re
from pathlib import Path

ACCEPTED, LOCKED = Path("requirements/accepted-vulnerabilities.txt"), Path("requirements/constraints.txt")
ENTRY = re.compile(r"(?:PYSEC|CVE|GHSA)-[A-Za-z0-9-]+ (?P<package>[a-z0-9._-]+) 20\d\d-\d\d-\d\d .{20,}")


def _lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_every_locked_version_is_exact():
    """Anything else, pip-audit would not look up."""
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._!+-]+", line) for line in _lines(LOCKED))


def test_each_accepted_vulnerability_has_a_locked_package_a_date_and_a_reason():
    packages = {line.split("==")[0].lower() for line in _lines(LOCKED)}
    for line in _lines(ACCEPTED):
        entry = ENTRY.fullmatch(line)
        assert entry is not None and entry["package"] in packages, line
