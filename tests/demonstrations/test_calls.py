"""The store of calls: each answer, whatever ends the process, and whoever else writes."""

import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from convrec.demonstrations.calls import CallStore, ChatAnswer, Spent
from tests.demonstrations.chat_server import PATIENCE, ChatServer, answer_to

# An unclosed client, connection, database or event loop fails the test.
pytestmark = pytest.mark.filterwarnings("error")
FIRST, SECOND = {"model": "m", "temperature": None}, {"model": "n", "temperature": 0.5}


def test_the_store_keeps_the_answer_to_each_request(tmp_path):
    path = tmp_path / "deep" / "folder" / "calls.sqlite"
    with closing(CallStore(path)) as store:
        assert store.get(FIRST) is None and store.spent() == Spent(0, 0, 0)
        store.put(FIRST, ChatAnswer("first", "stop", 10, 20))
        store.put(SECOND, ChatAnswer("second", None, 1, 2))
    with closing(CallStore(path)) as again:
        assert again.get(dict(reversed(FIRST.items()))) == ChatAnswer("first", "stop", 10, 20)
        assert again.get(SECOND).text == "second" and again.spent() == Spent(2, 11, 22)


def test_of_two_answers_the_first_is_kept_and_their_tokens_add_up(tmp_path):
    with closing(CallStore(tmp_path / "calls.sqlite")) as store:
        store.put(FIRST, ChatAnswer("first", "stop", 10, 20))
        store.put(FIRST, ChatAnswer("again", "length", 1, 2))
        assert store.get(FIRST) == ChatAnswer("first", "stop", 11, 22) and store.spent() == Spent(1, 11, 22)


def test_a_new_file_is_made_by_many_at_once(tmp_path):
    start = threading.Barrier(6)

    def work(n):
        start.wait()
        with closing(CallStore(tmp_path / "calls.sqlite")) as store:
            store.put({"n": n}, ChatAnswer("text", None, 1, 0))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    with closing(CallStore(tmp_path / "calls.sqlite")) as store:
        assert store.spent() == Spent(6, 6, 0)


PROGRAM = """
import sys
from pathlib import Path
from convrec.demonstrations.calls import CallStore
from convrec.demonstrations.chat import ChatClient

url, path, size, concurrency = sys.argv[1:]
store = CallStore(Path(path))
client = ChatClient(store, "m", url, 0.0, 50, int(concurrency), max_failed=0.0, token_budget=None)
prompts = [f"prompt {n}" for n in range(int(size))]
answers = client.ask(prompts, "judge")
store.close()
assert answers == [f"answer to {prompt}" for prompt in prompts], answers
"""


def _answers(path):
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        asked = "SELECT json_extract(request, '$.messages[0].content'), answer FROM calls"
        answers = dict(database.execute(asked).fetchall())
    assert all(answer == answer_to(prompt) for prompt, answer in answers.items())
    return answers


def test_a_kill_loses_at_most_the_calls_in_flight(tmp_path):
    path, size, concurrency = tmp_path / "calls.sqlite", 120, 8
    with ChatServer(latency=0.01) as server:
        command = [sys.executable, "-W", "error", "-X", "dev", "-c", PROGRAM, server.url, path, str(size), "8"]
        with subprocess.Popen(command) as killed:
            server.wait_for(60)
            killed.send_signal(signal.SIGKILL)
            assert killed.wait(PATIENCE) == -signal.SIGKILL
        kept, known = _answers(path), len(server.asked)
        assert known - concurrency <= len(kept) < size, "killed in the middle, with its answers kept"
        subprocess.run(command, check=True, timeout=PATIENCE)
        assert not set(kept) & set(server.prompts[known:]), "no recorded answer is asked for again"
    assert len(_answers(path)) == size
