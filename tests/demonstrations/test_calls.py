import hashlib
import sqlite3
import threading

import pytest

from convrec.demonstrations.calls import CallStore, ChatAnswer, Spent, canonical, request_key
from convrec.errors import InputError

pytestmark = pytest.mark.filterwarnings("error")  # an unclosed database fails the test


@pytest.fixture
def store(tmp_path):
    opened = CallStore(tmp_path / "calls" / "chat.sqlite")
    yield opened
    opened.close()


def test_a_request_is_known_by_its_content():
    request = {"model": "m", "messages": [{"role": "user", "content": "é"}], "temperature": None}
    text = '{"messages":[{"content":"\\u00e9","role":"user"}],"model":"m","temperature":null}'
    assert canonical(request) == text
    assert request_key(dict(reversed(request.items()))) == hashlib.sha256(text.encode()).hexdigest()


def test_the_store_keeps_the_first_answer_and_all_costs(tmp_path):
    path = tmp_path / "deep" / "folder" / "calls.sqlite"
    store = CallStore(path)
    request = {"model": "m"}
    assert store.get("a") is None and store.spent() == Spent(0, 0, 0, 0.0)
    store.charge("a", request, 1, 2, 0.5)
    assert store.get("a") is None and store.spent() == Spent(0, 1, 2, 0.5)
    store.put("a", request, ChatAnswer("first", "stop", 10, 20, 0.25))
    store.put("a", request, ChatAnswer("second", "length", 100, 200, 1.0))
    store.put("b", request, ChatAnswer("", None, 0, 0, 0.0))
    store.close()
    again = CallStore(path)
    assert again.get("a") == ChatAnswer("first", "stop", 111, 222, 1.75)
    assert again.get("b") == ChatAnswer("", None, 0, 0, 0.0), "an empty answer is one"
    assert again.spent() == Spent(2, 111, 222, 1.75)
    again.close()


def test_the_store_syncs_every_commit(store):
    database = store._database
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert database.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"
    store.put("a", {}, ChatAnswer("text", None, 1, 1, 0.0))
    assert not database.in_transaction


def _text(path):
    path.write_text("prompt,answer\n" * 100)


def _other_database(path):
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE calls (number TEXT)")
    database.close()


def _damaged(path):
    store = CallStore(path)
    for n in range(200):
        store.put(str(n), {"n": n}, ChatAnswer("x" * 100, None, 1, 1, 0.0))
    store.close()
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 8192)


@pytest.mark.parametrize("make", [_text, _other_database, _damaged, lambda path: path.mkdir()])
def test_a_file_that_is_no_store_is_told(tmp_path, make):
    path = tmp_path / "calls.sqlite"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(InputError, match=r"calls\.sqlite.*move (it|the file) away") as caught:
        store = CallStore(path)
        try:
            store.spent()
        finally:
            store.close()
    assert caught.value.__cause__ is None
    assert before is None or make is _damaged or path.read_bytes() == before, "left as it was"


def test_a_folder_that_cannot_be_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file/calls.sqlite: its folder cannot be made"):
        CallStore(tmp_path / "file" / "calls.sqlite")


def test_a_new_file_is_made_by_many_at_once(tmp_path):
    """Forty rounds, since one of them meets the moment at which SQLite does not wait about every tenth time."""
    errors = []

    def work(path, start, n):
        start.wait()
        try:
            store = CallStore(path)
            store.put(str(n), {}, ChatAnswer("text", None, 1, 0, 0.0))
            store.close()
        except InputError as error:
            errors.append(error)

    for number in range(40):
        start = threading.Barrier(6)
        threads = [threading.Thread(target=work, args=(tmp_path / f"{number}", start, n)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store = CallStore(tmp_path / f"{number}")
        assert not errors and store.spent() == Spent(6, 6, 0, 0.0)
        store.close()
