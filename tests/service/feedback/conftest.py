from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from convrec.service.feedback import FeedbackStore, recorder
from convrec.service.feedback.recorder import FeedbackRecorder
from tests.servers import Servers, running, wait_for


@pytest.fixture(scope="session")
def postgres() -> Iterator[Servers]:
    """A PostgreSQL server on a free port; who stops it starts it again."""
    with running("postgres") as servers:
        yield servers


@pytest.fixture
def postgres_url(postgres) -> str:
    """The URL of an empty database."""
    words, port = postgres.secrets["POSTGRES_PASSWORD"], postgres.ports["postgres"]
    url = f"postgresql://postgres:{words}@127.0.0.1:{port}/postgres"
    with closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        connection.cursor().execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request, tmp_path) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_url")
    return f"sqlite:///{tmp_path}/feedback/feedback.db"


@pytest.fixture
def store(url) -> Iterator[FeedbackStore]:
    with closing(FeedbackStore(url)) as opened:
        yield opened


def until(is_so: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something is so."""
    wait_for(is_so, seconds, "it to happen")


@pytest.fixture(autouse=True)
def fast(monkeypatch) -> None:
    """Let a recorder deliver often."""
    monkeypatch.setattr(recorder, "_LINGER", 0.02)
    monkeypatch.setattr(recorder, "_LONGEST_PAUSE", 0.1)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def recording(folder, url) -> Iterator[FeedbackRecorder]:
    with closing(FeedbackRecorder(folder, url, with_conversations=True)) as opened:
        yield opened
