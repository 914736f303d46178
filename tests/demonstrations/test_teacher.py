import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from convrec.data.catalog import LeftOut, build_catalog
from convrec.data.synthetic import Taste, World, embedded_rows, simulate
from convrec.demonstrations.embedding import TfidfEmbedder
from convrec.demonstrations.teacher import LLMTeacher, SimilarityTeacher, SimulatedTeacher
from convrec.parsing import parse_list

MONTHS = ["2022-01", "2022-02", "2022-03"]


@pytest.fixture(scope="module")
def world():
    films = build_catalog(embedded_rows(), ("genres", "keywords"), LeftOut())
    rows, truth = simulate(films, 5, 60, MONTHS, 20)
    tastes = dict(zip(truth["prompt_id"], truth["taste"].map(Taste.from_json), strict=True))
    return films, rows.drop_duplicates("prompt_id").to_dict("records"), tastes


def test_the_simulated_teacher_makes_the_known_faults(world):
    films, rows, tastes = world
    teacher = SimulatedTeacher(World(films, 5, 3), tastes, noise=1.0, fault_rate=0.3, seed=5)
    answers = teacher.recommend(rows, 20)
    assert answers == teacher.recommend(rows, 20)
    entries = [[e for e in parse_list(text, films) if e] for text in answers]
    flat = [entry for found in entries for entry in found]
    assert any(len(found) < 20 for found in entries), "too few lines"
    assert any(e.year is None for e in flat), "missing years"
    assert any(e.year is not None and e.index is None and films.indices_of_title(e.title) for e in flat), "wrong years"
    assert any(e.year is not None and not films.indices_of_title(e.title) for e in flat), "outside the catalog"
    assert any(text.startswith(("1. ", '"')) for text in answers), "numbering and quotes"


def test_without_faults_and_noise_it_names_the_best_fit(world):
    films, rows, tastes = world
    simulator = World(films, 5, 3)
    teacher = SimulatedTeacher(simulator, tastes, noise=0.0, fault_rate=0.0, seed=5)
    row = rows[0]
    affinity = simulator.affinity(tastes[row["prompt_id"]])
    named = [e.index for e in parse_list(teacher.recommend([row], 5)[0], films) if e]
    assert affinity[named].min() >= np.sort(affinity)[-5 - len(row["seen_titles"])]
    ratings = teacher.judge(row, [int(affinity.argmax()), int(affinity.argmin())])
    assert ratings[0] == 2 and ratings[1] < 0


def test_the_similarity_teacher_names_what_reads_alike_and_not_what_was_seen(catalog):
    teacher = SimilarityTeacher(catalog, TfidfEmbedder([item.text() for item in catalog.items]))
    row = {"messages": [{"role": "user", "content": "more sci-fi like Alien"}], "seen_titles": ["Alien"]}
    answer = teacher.recommend([row], 2)[0]
    assert "Alien" not in answer and answer.startswith("1. Dune")


@pytest.fixture
def endpoint():
    """A chat endpoint on this machine: it fails once with 429, then answers, and notes what it was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body)
            if len(asked) == 1:
                self.send_response(429)
                self.send_header("Retry-After", "0")
                self.end_headers()
                return
            prompt = body["messages"][0]["content"]
            text = "1: 2\n2. +1\n" if "Candidates" in prompt else "Heat (1995)"
            message = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [message]}
            payload = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
    server.shutdown()
    server.server_close()


def test_the_llm_teacher_speaks_to_a_chat_endpoint(catalog, endpoint, monkeypatch):
    url, asked = endpoint
    monkeypatch.setenv("OPENAI_API_KEY", "a key for the test")
    teacher = LLMTeacher(catalog, "some-model", url, 0.0, 1, 10.0, 3)
    row = {"messages": [{"role": "user", "content": "a heist"}], "seen_titles": []}
    assert teacher.recommend([row], 20) == ["Heat (1995)"]
    assert asked[-1]["model"] == "some-model" and "20 movies" in asked[-1]["messages"][0]["content"]
    assert "User: a heist" in asked[-1]["messages"][0]["content"]
    assert teacher.judge(row, [0, 1, 2]) == [2, 1, 0], "an unrated candidate counts 0"
