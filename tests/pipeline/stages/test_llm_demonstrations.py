"""The stage with a language model as its teacher: the real command against a real endpoint, killed and run again."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter

import mlflow
import pandas as pd
import pytest

from tests.demonstrations.chat_server import PROMPT_TOKENS, ChatServer, completion, reported, sent
from tests.small_project import ROOT, make_stages, run_in, set_params

pytestmark = pytest.mark.slow

KEY = "sk-a-key-that-must-not-be-written-anywhere"
CONCURRENCY = 4
LIST = ["Here you go:", "1. Heat (1995)", "2. Matrix, The (1999)", "3. Primer (2004)", "4. Alien", "5. Jaws (1985)"]


def _reply(asked):
    """A model that lists too few titles, in its own way, knows one film that the catalog does not hold, and judges."""
    prompt = asked.prompt
    if prompt.startswith("You recommend"):
        text = "\n".join(LIST)
    elif "Candidates:" in prompt:
        lines = prompt.split("Candidates:\n")[1].strip().splitlines()
        text = "\n".join(f"{number}: {number % 5 - 2}" for number, _ in enumerate(lines[:-1], start=1))
    elif prompt.startswith("Describe the movie Primer"):
        text = "Genres: sci-fi\nKeywords: time travel\nPlot: Two engineers build a time machine."
    else:
        text = "UNKNOWN"
    return sent(completion(text, reported()))


@pytest.fixture
def project(make_store, tmp_path):
    """A small embedded world whose demonstrations an LLM is to write."""
    make_stages(tmp_path, {"data": {"synthetic": {"num_conversations": 90}}})
    (tmp_path / "prompts").symlink_to(ROOT / "prompts")
    make_store(tmp_path)
    for stage in ("data", "evidence"):
        run_in(tmp_path, sys.executable, "-m", "convrec.cli", "run", stage)
    return tmp_path


def test_a_stage_that_a_budget_and_a_kill_stop_asks_for_nothing_twice_and_writes_no_key(project, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    command = [sys.executable, "-m", "convrec.cli", "run", "demonstrations"]
    with ChatServer(_reply, latency=0.02) as server:
        teacher = {"kind": "llm", "model": "some-model", "base_url": server.url, "max_concurrency": CONCURRENCY}
        set_params(project, {"demonstrations": {"teacher": {**teacher, "token_budget": 240}}})
        stopped = run_in(project, *command, check=False)  # among the lists
        assert stopped.returncode == 2 and "Traceback" not in stopped.stderr
        assert "demonstrations.teacher.token_budget = 240 is reached" in stopped.stderr
        assert len(server.asked) == len(set(server.prompts)) > 0
        set_params(project, {"demonstrations": {"teacher": {"token_budget": None}}})
        with (project / "killed.log").open("w") as log:
            stage = subprocess.Popen(command, cwd=project, stdout=log, stderr=log)
            server.wait_for(40)  # among the ratings
            os.kill(stage.pid, signal.SIGKILL)
            stage.wait()
        finished = run_in(project, *command)
        times = Counter(server.prompts)
        assert len(server.asked) - len(times) <= CONCURRENCY, "only calls in flight at the kill are made again"
        asked = len(server.asked)
        again = run_in(project, *command)
        assert len(server.asked) == asked, "a finished stage that runs again asks for nothing"

    assert re.search(r"recommend: (\d+) of \1 answered \(\d+ from the cache\)", finished.stderr)
    frames = [pd.read_parquet(project / f"data/demonstrations/{name}.parquet") for name in ("train", "validation")]
    frame = pd.concat(frames)
    assert (frame["teacher"] == "\n".join(LIST)).all()
    assert frame["demonstration"].str.split("\n").str.len().eq(6).all()
    metrics = json.loads((project / "results" / "demonstrations.json").read_text())
    assert metrics["train_answers"]["fewer"] == 1
    titles = metrics["train_titles"]  # Primer and Jaws, of another year, are not in the catalog
    assert (titles["exact"], titles["normalised"], titles["before"]) == pytest.approx((0.4, 0.2, 0.4))
    ratings = metrics["train_ratings"]
    assert len(frames[0]) < ratings["missing"] <= 2 * len(frames[0]), "the last candidate of each call is not rated"

    mlflow.set_tracking_uri(f"sqlite:///{project}/mlruns/mlflow.db")
    run_id = json.loads((project / "runs" / "demonstrations.json").read_text())["run_id"]
    recorded = mlflow.MlflowClient().get_run(run_id).data.metrics
    assert recorded["teacher/recommend/calls"] == 0 and recorded["teacher/recommend/cached"] == len(frame)
    assert recorded["teacher/total/calls"] == len(times)
    assert recorded["teacher/total/prompt_tokens"] == len(times) * PROMPT_TOKENS
    everything = b"".join(path.read_bytes() for path in project.rglob("*") if path.is_file())
    assert KEY.encode() not in everything + (finished.stderr + again.stderr).encode()
