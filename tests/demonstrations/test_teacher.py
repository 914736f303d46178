import numpy as np
import pytest

from convrec.data.catalog import build_catalog
from convrec.data.quarantine import Quarantine
from convrec.data.sources.synthetic import Taste, World, embedded_rows, simulate
from convrec.demonstrations.answers import parse_answer
from convrec.demonstrations.grounding import Grounder
from convrec.demonstrations.teacher import LLMTeacher, SimilarityTeacher, SimulatedTeacher
from convrec.similarity.embedding import TfidfEmbedder
from tests.demonstrations.chat_server import PROMPTS, ChatServer, client_of, completion, error, reported, sent

MONTHS = ["2022-01", "2022-02", "2022-03"]


@pytest.fixture(scope="module")
def world():
    films = build_catalog(embedded_rows(), ("genres", "keywords"), Quarantine())[0]
    rows, truth = simulate(films, 5, 60, MONTHS, 20)
    tastes = dict(zip(truth["prompt_id"], truth["taste"].map(Taste.from_json), strict=True))
    return films, rows.drop_duplicates("prompt_id").to_dict("records"), tastes


def test_the_simulated_teacher_makes_the_known_faults(world):
    films, rows, tastes = world
    teacher = SimulatedTeacher(World(films, 5, 3), tastes, noise=1.0, fault_rate=0.3, seed=5)
    answers = teacher.recommend(rows, 20)
    assert answers == teacher.recommend(rows, 20)
    found = [parse_answer(text, films).entries for text in answers]
    flat = [entry for entries in found for entry in entries]
    assert any(len(entries) < 20 for entries in found), "too few lines"
    assert any(e.year is None for e in flat), "missing years"
    assert any(e.year is not None and e.index is None and films.indices_of_title(e.title) for e in flat), "wrong years"
    assert any(e.year is not None and not films.indices_of_title(e.title) for e in flat), "outside the catalog"
    assert any(text.startswith(("1. ", '"')) for text in answers), "numbering and quotes"
    kinds = {match.kind if match else None for match in Grounder(films, 85, 97).match(flat)}
    assert kinds == {"exact", "normalised", "fuzzy", None}, "other spellings and typing errors"


def test_without_faults_and_noise_it_names_the_best_fit(world):
    films, rows, tastes = world
    simulator = World(films, 5, 3)
    teacher = SimulatedTeacher(simulator, tastes, noise=0.0, fault_rate=0.0, seed=5)
    row = rows[0]
    affinity = simulator.affinity(tastes[row["prompt_id"]])
    named = [entry.index for entry in parse_answer(teacher.recommend([row], 5)[0], films).entries]
    assert affinity[named].min() >= np.sort(affinity)[-5 - len(row["seen_titles"])]
    ratings = teacher.judge([row], np.array([[affinity.argmax(), affinity.argmin()]]))
    assert ratings[0, 0] == 2 and ratings[0, 1] < 0


def test_the_similarity_teacher_names_what_reads_alike_and_not_what_was_seen(catalog):
    teacher = SimilarityTeacher(catalog, TfidfEmbedder([item.text() for item in catalog.items]))
    row = {"messages": [{"role": "user", "content": "more sci-fi like Alien"}], "seen_titles": ["Alien"]}
    answer = teacher.recommend([row], 2)[0]
    assert "Alien" not in answer and answer.startswith("1. Dune")
    assert teacher.judge([row], np.array([[1, 3]]))[0, 0] > teacher.judge([row], np.array([[1, 3]]))[0, 1]


def _llm(tmp_path, server, catalog, max_failed=0.0):
    chat = client_of(server, tmp_path, max_failed=max_failed)
    return LLMTeacher(chat, PROMPTS, catalog, candidates_per_call=2), chat


def _row(words):
    return {"messages": [{"role": "user", "content": words}], "seen_titles": []}


def test_the_llm_teacher_asks_for_lists_and_keeps_their_order(catalog, tmp_path):
    def reply(asked):
        return sent(completion("Heat (1995)" if "a heist" in asked.prompt else "Up (2009)", reported()))

    with ChatServer(reply) as server:
        teacher, chat = _llm(tmp_path, server, catalog)
        assert teacher.recommend([_row("a heist"), _row("{braces} and an old man")], 20) == ["Heat (1995)", "Up (2009)"]
        assert all("recommend 20 movies" in prompt for prompt in server.prompts)
        assert any("User: {braces} and an old man" in prompt for prompt in server.prompts)
    assert chat.usage()["recommend"]["calls"] == 2


def test_the_llm_judge_rates_in_batches_and_leaves_what_it_did_not_rate(catalog, tmp_path):
    def reply(asked):
        lines = asked.prompt.split("Candidates:\n")[1].splitlines()
        ratings = [f"{n}: {2 if 'Heat' in line else -1}" for n, line in enumerate(lines, 1) if "Alien" not in line]
        return sent(completion("\n".join(ratings) or "I cannot say.", reported()))

    with ChatServer(reply) as server:
        teacher, _ = _llm(tmp_path, server, catalog)
        candidates = np.array([[3, 0, 4], [0, -1, -1]])
        ratings = teacher.judge([_row("a heist"), _row("an old man")], candidates)
        assert len(server.prompts) == 3, "two candidates a call"
    np.testing.assert_array_equal(ratings, [[-1, 2, np.nan], [2, np.nan, np.nan]])


def test_answers_that_may_fail_are_empty_lists_and_missing_ratings(catalog, tmp_path):
    with ChatServer(lambda _: error(422)) as server:
        teacher, _ = _llm(tmp_path, server, catalog, max_failed=1.0)
        assert teacher.recommend([_row("a heist")], 20) == [""]
        assert np.isnan(teacher.judge([_row("a heist")], np.array([[0, 1]]))).all()
