import numpy as np
import pytest

from convrec.classical.embedding import TfidfEmbedder
from convrec.data.sources.synthetic import Taste, World, embedded_catalog, simulate
from convrec.demonstrations.answers import parse_answer
from convrec.demonstrations.grounding import Grounder
from convrec.demonstrations.teachers.similarity import SimilarityTeacher
from convrec.demonstrations.teachers.simulated import SimulatedTeacher

MONTHS = ["2022-01", "2022-02", "2022-03"]


@pytest.fixture(scope="module")
def world():
    films = embedded_catalog()
    rows, truth = simulate(films, 5, 60, MONTHS, 20)
    tastes = dict(zip(truth["prompt_id"], truth["taste"].map(Taste.from_json), strict=True))
    return films, rows.drop_duplicates("prompt_id").to_dict("records"), tastes


def test_the_simulated_teacher_makes_the_known_faults(world):
    films, rows, tastes = world
    teacher = SimulatedTeacher(World(films, 5, 3), tastes, noise=1.0, fault_rate=0.3, seed=5)
    answers = teacher.recommend(rows, 20)
    assert answers == teacher.recommend(rows, 20)
    found = [parse_answer(text, films) for text in answers]
    flat = [entry for entries in found for entry in entries]
    assert any(len(entries) < 20 for entries in found), "too few lines"
    assert any(e.year is None for e in flat), "missing years"
    assert any(e.year is not None and e.index is None and films.indices_of_title(e.title) for e in flat), "wrong years"
    assert any(e.year is not None and not films.indices_of_title(e.title) for e in flat), "outside the catalog"
    assert any(text.startswith(("1. ", '"')) for text in answers), "numbering and quotes"
    kinds = {match.kind if match else None for match in Grounder(films).match(flat)}
    assert kinds == {"exact", "normalised", "fuzzy", None}, "other spellings and typing errors"


def test_without_faults_and_noise_it_names_the_best_fit(world):
    films, rows, tastes = world
    simulator = World(films, 5, 3)
    teacher = SimulatedTeacher(simulator, tastes, noise=0.0, fault_rate=0.0, seed=5)
    row = rows[0]
    affinity = simulator.affinity(tastes[row["prompt_id"]])
    named = [entry.index for entry in parse_answer(teacher.recommend([row], 5)[0], films)]
    assert affinity[named].min() >= np.sort(affinity)[-5 - len(row["seen_titles"])]
    ratings = teacher.judge([row], np.array([[affinity.argmax(), affinity.argmin()]]))
    assert ratings[0, 0] == 2 and ratings[0, 1] < 0


def test_the_similarity_teacher_names_what_reads_alike_and_not_what_was_seen(catalog):
    teacher = SimilarityTeacher(catalog)
    teacher.prepare(TfidfEmbedder([item.text() for item in catalog.items]))
    row = {"messages": [{"role": "user", "content": "more sci-fi like Alien"}], "seen_titles": ["Alien"]}
    answer = teacher.recommend([row], 2)[0]
    assert "Alien" not in answer and answer.startswith("1. Dune")
    assert teacher.judge([row], np.array([[1, 3]]))[0, 0] > teacher.judge([row], np.array([[1, 3]]))[0, 1]
