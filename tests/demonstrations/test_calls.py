"""The store of calls: each answer and its cost, whatever ends the process, and whoever else writes."""

import hashlib
import json
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from convrec.demonstrations.calls import CallStore, ChatAnswer, Spent, canonical, request_key
from convrec.project.errors import InputError
from tests.demonstrations.chat_server import (
    PATIENCE,
    ChatServer,
    answer_to,
)

# An unclosed client, connection, database or event loop fails the test.
pytestmark = pytest.mark.filterwarnings("error")


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
    store.put("a", request, ChatAnswer(None, None, 1, 2, 0.5))
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


def _text(path):
    path.write_text("prompt,answer\n" * 100)


def _other_database(path):
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE calls (number TEXT)")
    database.close()


def _foreign_database(path):
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE runs (number TEXT)")
    database.close()


def _damaged(path):
    store = CallStore(path)
    for n in range(200):
        store.put(str(n), {"n": n}, ChatAnswer("x" * 100, None, 1, 1, 0.0))
    store.close()
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 8192)


@pytest.mark.parametrize("make", [_text, _other_database, _foreign_database, _damaged, lambda path: path.mkdir()])
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


def test_a_new_file_is_made_by_many_at_once(tmp_path):
    start, errors = threading.Barrier(6), []

    def work(n):
        start.wait()
        try:
            store = CallStore(tmp_path / "calls.sqlite")
            store.put(str(n), {}, ChatAnswer("text", None, 1, 0, 0.0))
            store.close()
        except InputError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = CallStore(tmp_path / "calls.sqlite")
    assert not errors and store.spent() == Spent(6, 6, 0, 0.0)
    store.close()


PROGRAM = """
import sys
from pathlib import Path
from convrec.demonstrations.calls import CallStore
from convrec.demonstrations.chat import Budget, ChatClient

url, path, first, last, concurrency = sys.argv[1:]
store = CallStore(Path(path))
client = ChatClient(
    store, model="m", base_url=url, temperature=0.0, max_completion_tokens=50, max_concurrency=int(concurrency),
    timeout_seconds=20.0, max_retries=3, max_failed=0.0, budget=Budget(None, None, 0.0, 0.0),
)
prompts = [f"prompt {n}" for n in range(int(first), int(last))]
answers = client.ask(prompts, "judge")
store.close()
assert answers == [f"answer to {prompt}" for prompt in prompts], answers
"""


@contextmanager
def asking(server, path, first, last, concurrency):
    """A process of its own that asks for prompts `first` to `last`."""
    arguments = [server.url, str(path), str(first), str(last), str(concurrency)]
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", PROGRAM, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _check(path):
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = database.execute("SELECT key, request, answer FROM calls").fetchall()
    database.close()
    answers = {}
    for key, request, answer in rows:
        assert key == hashlib.sha256(request.encode()).hexdigest()
        prompt = json.loads(request)["messages"][0]["content"]
        assert answer == answer_to(prompt)
        answers[prompt] = answer
    return answers


def test_a_kill_loses_at_most_the_calls_in_flight(tmp_path):
    path, size, concurrency = tmp_path / "calls.sqlite", 200, 8
    with ChatServer(latency=0.01) as server:
        for kill in (1, 2):
            asked_before = len(server.asked)
            with asking(server, path, 0, size, concurrency) as process:
                server.wait_for(asked_before + 60)
                process.send_signal(signal.SIGKILL)
                assert process.wait(PATIENCE) == -signal.SIGKILL
            kept, known = _check(path), len(server.asked)
            assert known - kill * concurrency <= len(kept) < size, "killed in the middle, with its answers kept"
        with asking(server, path, 0, size, concurrency) as process:
            _, stderr = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, stderr
        assert not set(kept) & set(server.prompts[known:]), "no recorded answer is asked for again"
        assert len(server.asked) <= size + 2 * concurrency
    assert len(_check(path)) == size
