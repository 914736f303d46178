import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from scipy import sparse

from convrec.classical import guidance
from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.evidence import EVIDENCE, Evidence
from convrec.classical.guidance import Guidance, as_log_weights
from convrec.classical.scores import WeightedSum, sparse_scores
from convrec.data.catalog import Catalog, Item
from convrec.project.errors import InputError
from tests.generation.vocabularies import by_item
from tests.rows import make_row

HEAT, DUNE, UP = ("Heat", 1995), ("Dune", 2021), ("Up", 2009)
ROWS = [
    make_row("a", [HEAT, UP], "a heist and the police", user_id="ann", date="2022-01-03"),
    make_row("b", [HEAT], "police and a heist", user_id="bob", date="2022-02-03"),
    make_row("c", [DUNE], "a desert planet", user_id="cid", seen_titles=["Up"], date="2022-03-03"),
]
ASKED = [make_row("x", [], "a heist, please"), make_row("y", [], "planets", seen_titles=["Up"]), ROWS[0]]


def _guidance(catalog, weights, kept=3):
    evidence = Evidence.fit(ROWS, catalog, TfidfEmbedder, neighbours=3, kept=kept)
    return Guidance(evidence, weights, {"name": "tfidf"})


def _by_item(weights):
    return [by_item(own) for own in weights]


def test_what_is_saved_guides_as_before_and_holds_no_text(catalog, tmp_path):
    made = _guidance(catalog, {"popularity": 0.5, "neighbours": 2.0, "item_knn": 1.0, "content": 0.3})
    made.save(tmp_path)
    again = Guidance.load(tmp_path, catalog)
    found, before = (_by_item(own(ASKED)) for own in (again, made))
    assert found == before and any(found)
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not [word for word in (b"heist", b"police", b"desert", b"ann", b"bob") if word in content]


def test_the_best_items_of_the_sum_have_weights_above_all_others(catalog):
    weights = {"popularity": 1.0, "neighbours": 1.0, "item_knn": 0.0, "content": 0.0}
    (found,) = _by_item(_guidance(catalog, weights, kept=2)(ASKED[:1]))
    heat, up = (catalog.find(*item) for item in (HEAT, UP))
    assert set(found) == {heat, up} and found[heat] > found[up] > 0


def test_scores_beyond_the_largest_weight_keep_their_order():
    scores = sparse_scores(sparse.csr_array([[0.0, 40.0, 30.0, 15.0, 1.0]], dtype=np.float32))
    (found,) = _by_item(as_log_weights(WeightedSum([scores], [10.0]), kept=4))
    assert found == pytest.approx({1: 100.0, 2: 75.0, 3: 37.5, 4: 2.5})


def test_a_row_takes_eight_bytes_an_item():
    values = np.random.default_rng(0).random((50, 3000))
    scores = WeightedSum([sparse_scores(sparse.csr_array(values.astype(np.float32)))], [1.0])
    rows = as_log_weights(scores, kept=200)
    assert {(row.items.dtype.name, row.logs.dtype.name, len(row)) for row in rows} == {("int32", "float32", 200)}
    whole = {id(array.base): array.base.nbytes for row in rows for array in (row.items, row.logs)}
    assert sum(whole.values()) == 50 * 200 * 8


@pytest.mark.parametrize("weights", [{}, dict.fromkeys(EVIDENCE, 0.0)])
def test_without_weights_there_is_no_guidance(catalog, tmp_path, weights):
    made = _guidance(catalog, weights)
    assert _by_item(made(ASKED)) == [{}, {}, {}]
    made.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["guidance.json"], "no likes of people"
    assert Guidance.load(tmp_path, catalog) is None is Guidance.load(tmp_path / "nowhere", catalog)


def test_the_evidence_of_a_changed_catalog_is_that_of_its_items(catalog, tmp_path):
    """Items came, went and changed places; the evidence is that of the same rows."""
    weights = {"popularity": 0.5, "neighbours": 2.0, "item_knn": 1.0, "content": 0.3}
    _guidance(catalog, weights).save(tmp_path)
    items = [item for item in catalog.items[::-1] if str(item) != "Up (2009)"]
    other = Catalog([Item("New", 2024), *items])
    made = Guidance.load(tmp_path, other), _guidance(other, weights)
    found, expected = (_by_item(own(ASKED)) for own in made)
    assert found == expected


def _array(name, change):
    def damage(folder):
        path = folder / "evidence.safetensors"
        with safe_open(path, "numpy") as file:
            arrays, settings = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
        arrays[name] = change(arrays[name].astype(np.float32) if name.endswith(("data", "idf")) else arrays[name])
        save_file(arrays, path, settings)

    return damage


def _settings(**values):
    def damage(folder):
        path = folder / "guidance.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return damage


def _cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-9])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_cut("guidance.json"), r"\(Invalid JSON"),
        (_settings(weights={"content": "much"}), "weights.content = 'much': Input should be a valid number"),
        (
            _settings(weights={"content": 1e300}),
            "weights.content = 1e.300: Input should be less than or equal to 1000000",
        ),
        (_settings(weights={"content": float("nan")}), "weights.content = nan: Input should be a finite number"),
        (_settings(weights=None), "weights = None"),
        (_settings(weights={"ease": 1.0}), "weights.ease.+Input should be 'popularity'"),
        (_settings(embedder={}), "embedder.name = {}: Field required"),
        (_cut("evidence.safetensors"), "deserializing header"),
        (lambda folder: (folder / "evidence.safetensors").unlink(), "No such file"),
        (_array("liked.columns", lambda old: old + 100), "must be < 5"),
        (_array("likes.columns", lambda old: np.full_like(old, -1)), "must be >= 0"),
        (_array("likes.data", lambda old: old * np.nan), "likes.data has nan"),
        (_array("liked.data", lambda old: -old), "liked.data has -1.0"),
        (_array("vectors.data", lambda old: old * 1e30), "vectors.data has "),
        (_array("voters", lambda old: np.arange(10)), r"voters has the shape \(10,\), not \(3,\)"),
        (_array("liked_in", lambda old: old[:-1]), r"liked_in has the shape \(4,\), not \(5,\)"),
        (_array("encoder.named", lambda old: old[:-1]), r"encoder.named has the shape \(9, 128\), not \(10, 128\)"),
        (_array("people", lambda old: old * 0), r"people has the shape \(3,\), not \(1,\)"),
        (_array("items", lambda old: old[:2]), r"items has the shape \(2,\), not "),
        (_array("idf", lambda old: old[:2]), "idf length = 2"),
    ],
)
def test_a_damaged_folder_is_told_by_file_and_field(catalog, tmp_path, damage, words):
    _guidance(catalog, {"content": 1.0, "neighbours": 1.0}).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(InputError, match=f"(?s)damaged .*{words}.*; make it again") as error:
        Guidance.load(tmp_path, catalog)
    assert len(str(error.value)) < 600 and "\n" not in str(error.value)


def test_a_file_does_not_decide_that_foreign_code_runs(catalog, tmp_path, monkeypatch):
    _guidance(catalog, {"neighbours": 1.0}).save(tmp_path)
    settings = tmp_path / "guidance.json"
    hostile = {"name": "evil/repo", "trust_remote_code": True, "device": "cuda"}
    settings.write_text(json.dumps({"weights": {"neighbours": 1.0}, "embedder": hostile}))
    asked = []
    monkeypatch.setattr(Evidence, "load", lambda path, catalog, make, device: asked.append(make))
    monkeypatch.setattr(guidance, "make_embedder", lambda texts, **options: asked.append(options))
    Guidance.load(tmp_path, catalog)
    asked.pop()()
    assert asked == [{"name": "evil/repo", "revision": None, "device": "cpu"}]


def test_an_embedder_of_its_own_kind_is_asked_for_again(catalog, tmp_path):
    class Letters:
        def embed_conversations(self, texts):
            counts = np.array([[text.count(letter) + 1 for letter in "abc"] for text in texts], dtype=np.float32)
            return counts / np.linalg.norm(counts, axis=1, keepdims=True)

        embed_items = embed_conversations

    evidence = Evidence.fit(ROWS, catalog, lambda _: Letters(), neighbours=3, kept=3)
    evidence.save(tmp_path / "evidence")
    with pytest.raises(InputError, match="sentence-transformers model of demonstrations"):
        Evidence.load(tmp_path / "evidence", catalog)
    again = Evidence.load(tmp_path / "evidence", catalog, Letters)
    found = [own.terms(ASKED).values() for own in (evidence, again)]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one.block(slice(0, 3)), other.block(slice(0, 3)))
