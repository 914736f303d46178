import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from convrec.data.catalog import Catalog
from convrec.data.sources.synthetic import embedded_catalog
from convrec.project.code import Key
from convrec.project.config.params import load_params
from convrec.training.callbacks import read_history
from convrec.training.checkpoints import (
    finished_model,
    mark_finished,
    prepare_folder,
    training_folder,
)
from convrec.training.embedded import (
    catalog_cards,
    catalog_pages,
    embedded_sizes,
    make_model,
    page_budget,
    set_title_vectors,
    train_tokenizer,
)
from convrec.training.launch import RETRAIN
from tests.generation.small import sizes

PAGES = "3fd812949f0983a670534d1ed4fb5c28b8b55a89ba056b5f0f54f7d5eb675a1a"
FILMS = embedded_catalog()
TOKENIZER = train_tokenizer(catalog_cards(FILMS), FILMS.items, 1024)


@given(st.text())
def test_every_string_survives_a_round_trip(text):
    assert TOKENIZER.decode(TOKENIZER(text).input_ids, clean_up_tokenization_spaces=False) == text


def test_a_list_costs_two_tokens_an_item():
    lines = [str(item) for item in FILMS.items]
    assert len(TOKENIZER("\n".join(lines)).input_ids) == 2 * len(lines)


def test_a_title_is_one_token_wherever_it_stands_but_not_within_a_word():
    title = TOKENIZER.convert_tokens_to_ids("Up")
    assert title in TOKENIZER("i loved Up, and Her").input_ids
    assert title in TOKENIZER("Up (2009)\n").input_ids
    assert title not in TOKENIZER("Upstairs").input_ids


def test_the_pages_of_the_embedded_catalog_are_the_same_in_every_version():
    pages = "\0".join(catalog_pages(Catalog(FILMS.items[:40]), 300, 20, seed=3))
    assert hashlib.sha256(pages.encode()).hexdigest() == PAGES


def test_pages_equal_those_of_a_dense_table():
    """The plain loop over a table of items by values, with the same draws."""
    items = FILMS.items[:40]
    own = [[v for text in item.metadata.values() for v in text.split(", ") if v] for item in items]
    short = [[value for value in words if len(value) <= 30] for words in own]
    values = [[*words, f"{item.year // 10 * 10}s"] for words, item in zip(short, items, strict=True)]
    rng, expected = np.random.default_rng(3), []
    for _ in range(100):
        drawn = values[int(rng.integers(len(values)))]
        heading = rng.choice(drawn, size=min(len(drawn), int(rng.integers(1, 4))), replace=False).tolist()
        scores = np.array([sum(value in other for value in heading) for other in values]) + rng.random(len(items))
        best = np.argsort(-scores, kind="stable")[:20]
        expected.append("\n".join([", ".join(heading), *(str(items[i]) for i in best if scores[i] >= 1)]))
    assert catalog_pages(Catalog(items), 100, 20, seed=3) == expected


@pytest.mark.parametrize(("num_items", "pages"), [(15, 180), (480, 5760), (200_000, 6000)])
def test_the_budget_of_pages_grows_with_the_catalog(num_items, pages):
    assert page_budget(num_items) == pages


def test_the_model_has_about_a_million_parameters_and_follows_the_seed():
    config = load_params().base_model.embedded
    options = {**embedded_sizes(config.hidden_size, config.num_hidden_layers), "seed": 1}
    first, second = (make_model(TOKENIZER, **options).state_dict() for _ in range(2))
    assert 0.8e6 < sum(p.numel() for p in make_model(TOKENIZER, **options).parameters()) < 1.5e6
    assert all((first[name] == second[name]).all() for name in first)


def test_a_finished_training_is_found_again_until_its_code_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    key, other = Key("task", "code"), Key("task", "other code")
    folder = training_folder("sft", key)
    assert folder == training_folder("sft", other) != training_folder("sft", Key("other task", "code"))
    model = folder / "checkpoint-4"
    model.mkdir(parents=True)
    for name in ("complete", "trainer_state.json"):
        (model / name).write_text("{}")
    assert prepare_folder(folder) == model, "an interrupted one is resumed"
    assert finished_model(folder, key) is None
    mark_finished(folder, model, key)
    assert finished_model(folder, key) == model
    assert finished_model(folder, other) is None
    monkeypatch.setenv(RETRAIN, "1")
    assert finished_model(folder, key) is None
    assert prepare_folder(folder) is None and not model.exists()


def test_a_history_cut_short_by_a_crash_keeps_its_whole_lines(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo', encoding="utf-8")
    assert read_history(path) == [{"step": 1, "loss": 2.0}]
    assert read_history(tmp_path / "none") == []


@pytest.mark.parametrize("people", [1, 30])
def test_products_of_title_vectors_are_those_of_the_best_approximation_of_the_cosines(people):
    items = FILMS.items[:12]
    likes = np.random.default_rng(0).random((people, 12)) < 0.4
    likes[:, 3] = False  # nobody liked it
    tokens = TOKENIZER.convert_tokens_to_ids([item.title for item in items])
    model = make_model(TOKENIZER, **sizes(hidden_size=8, intermediate_size=8), seed=0)
    before = model.get_input_embeddings().weight.detach().clone()
    set_title_vectors(model, TOKENIZER, items, sparse.csr_array(likes.astype(np.float32)))
    after = model.get_input_embeddings().weight.detach()
    changed = (after != before).any(dim=1).nonzero().flatten().tolist()
    if people == 1:  # no two likes to compare
        assert not changed
        return
    liked = [i for i in range(12) if i != 3]
    assert changed == sorted(tokens[i] for i in liked)
    columns = likes[:, liked] / np.linalg.norm(likes[:, liked], axis=0)
    _, values, right = np.linalg.svd(columns)
    expected = (right[:8].T * values[:8] ** 2) @ right[:8]
    found = after[[tokens[i] for i in liked]].numpy()
    np.testing.assert_allclose(found @ found.T, expected, atol=1e-5)
