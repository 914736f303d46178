import pytest

from convrec.evaluation import comparison


@pytest.fixture
def few_persons(monkeypatch) -> None:
    """Let examples of a few persons have intervals."""
    monkeypatch.setattr(comparison, "MIN_PERSONS", 1)
