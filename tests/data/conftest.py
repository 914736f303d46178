import pytest

from convrec.data.quarantine import Quarantine


@pytest.fixture
def quarantine() -> Quarantine:
    return Quarantine()
