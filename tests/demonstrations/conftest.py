import pytest

from convrec.demonstrations.calls import CallStore
from convrec.demonstrations.chat import ChatClient
from tests.demonstrations.chat_server import KEY


@pytest.fixture
def store(tmp_path):
    opened = CallStore(tmp_path / "calls" / "chat.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def connect(store, monkeypatch):
    """Makes clients of a server, which keep their calls in the store."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    options = {"model": "some-model", "temperature": 0.0, "max_completion_tokens": 50}
    options |= {"max_concurrency": 4, "max_failed": 0.0, "token_budget": None}
    return lambda server, **changes: ChatClient(store, base_url=server.url, **options | changes)
