import json
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from convrec.data.catalog import Catalog
from convrec.data.wishes import Wish
from convrec.generation import jump_forward, pretrained
from convrec.generation.engine import EngineOptions, TransformersEngine
from convrec.generation.lists import ListCache, ListSettings, check_constraint, keep_wishes, list_writer
from convrec.generation.model_folders import standalone
from convrec.generation.pretrained import load_tokenizer
from convrec.generation.trie import ListRequest
from convrec.project.errors import InputError
from tests.generation.random_model import make_random_model, prompts_of
from tests.generation.vocabularies import log_weights
from tests.rows import make_items

SETTINGS = ListSettings(None, 5, 16)
SETTINGS_OF_THREE = ListSettings(None, 3, 1)  # what a list of the catalog takes is not cut
OPTIONS = EngineOptions("transformers", "cpu", 2, 1, 0.5)
ROWS = [{"messages": prompt} for prompt in prompts_of(9)]


def model_lists(*asked, weights=None):
    with list_writer(*asked) as write:
        return write(weights)[0]


@pytest.mark.parametrize(("share", "name"), [(0.3, "allowed"), (0.7, "banned")])
def test_what_wishes_open_takes_few_bytes_an_item(share, name):
    """A set takes 70: the requests of a whole split are made at once."""
    fits = np.random.default_rng(0).random(30_000) < share
    request, found = keep_wishes(ListRequest(5, {1}), [Wish("a comedy", "kept", fits)], len(fits))
    kept = getattr(request, name)
    assert found[0].state == "kept" and sys.getsizeof(kept) < 5 * len(kept) + 100
    left = set(np.flatnonzero(fits).tolist()) - {1}
    assert set(kept) == (left if name == "allowed" else set(range(30_000)) - left)
    assert json.loads(json.dumps(sorted(kept))) == sorted(set(kept))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_random_model(tmp_path_factory.mktemp("random") / "model")


@pytest.fixture
def asked(monkeypatch, here) -> list[int]:
    """The sizes of the batches that are generated, in a project of its own."""
    sizes: list[int] = []
    whole = TransformersEngine.complete

    def complete(self, prompts, requests=()):
        sizes.append(len(prompts))
        return whole(self, prompts, requests)

    monkeypatch.setattr(TransformersEngine, "complete", complete)
    return sizes


def test_a_prompt_is_asked_once(model, asked):
    lists = model_lists(model, [*ROWS[:3], *ROWS[:3]], SETTINGS, OPTIONS)
    assert asked == [2, 1] and lists.texts[:3] == lists.texts[3:] and len(set(lists.texts)) == 3
    assert model_lists(model, ROWS[:4], SETTINGS, OPTIONS).texts[:3] == lists.texts[:3]
    assert asked == [2, 1, 1]


def test_other_weights_other_decoding_and_another_device_are_other_lists(model, asked, tmp_path):
    first = model_lists(model, ROWS[:2], SETTINGS, OPTIONS)
    copy = shutil.copytree(model, tmp_path / "copy")
    (copy / "trainer_state.json").touch()
    assert model_lists(copy, ROWS[:2], SETTINGS, OPTIONS) == first and asked == [2], "the same weights elsewhere"
    penalised = model_lists(model, ROWS[:2], ListSettings(None, 5, 16, repetition_penalty=2.0), OPTIONS)
    other = model_lists(make_random_model(tmp_path / "other", seed=1), ROWS[:2], SETTINGS, OPTIONS)
    assert asked == [2, 2, 2] and len({*first.texts, *penalised.texts, *other.texts}) == 6
    instructed = model_lists(model, ROWS[:2], ListSettings("Films.", 5, 16), OPTIONS)
    assert asked == [2, 2, 2, 2] and instructed.texts != first.texts


def test_a_generation_that_failed_goes_on_where_it_was(model, asked, monkeypatch):
    whole = model_lists(model, ROWS, SETTINGS, OPTIONS).texts
    shutil.rmtree("checkpoints")
    counted = TransformersEngine.complete

    def fail_at_third(self, prompts, requests=()):
        if len(asked) == 2:
            raise RuntimeError("out of memory")
        return counted(self, prompts, requests)

    asked.clear()
    with monkeypatch.context() as failing, pytest.raises(RuntimeError, match="out of memory"):
        failing.setattr(TransformersEngine, "complete", fail_at_third)
        model_lists(model, ROWS, SETTINGS, OPTIONS)
    assert asked == [2, 2]
    assert model_lists(model, ROWS, SETTINGS, OPTIONS).texts == whole
    assert asked == [2, 2, 2, 2, 1]


def test_adapters_answer_as_the_model_that_they_are_merged_into(model, asked, tmp_path):
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model),
        LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"),
    )
    adapted.save_pretrained(tmp_path / "adapters")
    load_tokenizer(model).save_pretrained(tmp_path / "adapters")
    lists = model_lists(tmp_path / "adapters", ROWS, SETTINGS, OPTIONS)
    assert lists != model_lists(model, ROWS, SETTINGS, OPTIONS)
    with standalone(tmp_path / "adapters") as merged:
        assert not (merged / "adapter_config.json").exists()
        shutil.rmtree("checkpoints")
        assert model_lists(merged, ROWS, SETTINGS, OPTIONS) == lists
    assert not merged.exists()


def test_lists_from_the_catalog_alone(model, asked):
    catalog = Catalog(make_items("Heat (1995) | Alien (1979) | Aliens (1986) | Up | M (1931)"))
    seen = ["Heat (1995)", "M"]
    rows = [{**ROWS[0], "seen_titles": []}, {**ROWS[0], "seen_titles": seen}, {**ROWS[1], "seen_titles": seen}]
    lists = model_lists(model, rows, SETTINGS_OF_THREE, OPTIONS, catalog).texts
    assert asked == [2, 1], "one prompt with other seen titles is another list"
    for text, row in zip(lists, rows, strict=True):
        found = [catalog.index_of_line(written) for written in text.split("\n")]
        assert len(set(found)) == 3 and None not in found
        assert not set(found) & catalog.indices_of_titles(row["seen_titles"])
    assert model_lists(model, rows, SETTINGS_OF_THREE, OPTIONS, catalog).texts == lists and asked == [2, 1]
    assert model_lists(model, rows, SETTINGS_OF_THREE, OPTIONS).texts != lists and asked == [2, 1, 2]
    smaller = Catalog(catalog.items[:4])
    rows = [{**ROWS[0], "prompt_id": key, "seen_titles": own} for key, own in (("p", []), ("q", ["Heat", "Up"]))]
    with pytest.raises(InputError, match="3 items is asked for, and 2 of the catalog's 4"):
        model_lists(model, rows[1:], SETTINGS_OF_THREE, OPTIONS, smaller)
    with pytest.raises(
        InputError, match=r"evaluate\.constrained: prompt 'q': a list of 3 items .*; or set it to false"
    ):
        check_constraint(model, rows, smaller, 3)


def test_the_lists_of_a_model_take_one_load_of_its_tokenizer(model, asked, monkeypatch):
    loads = []  # each asks for the chat template
    monkeypatch.setattr(pretrained, "fixed_template", lambda own, what: loads.append(what) or own.chat_template)
    rows = [{**row, "seen_titles": []} for row in ROWS[:2]]
    for catalog in (None, Catalog(make_items("Heat | Up | M"))):
        model_lists(model, rows, SETTINGS_OF_THREE, OPTIONS, catalog)
    assert asked == [2, 2] and loads == [str(model)] * 2


def test_one_engine_writes_the_lists_of_all_weights(model, asked, monkeypatch):
    """They are those of an engine for each, and none is written twice."""
    catalog = Catalog(make_items("Heat | Alien | Up | M | Dune"))
    rows = [{**row, "seen_titles": []} for row in ROWS[:3]]
    weights = [None, [log_weights({item: 5.0}) for item in range(3)], [log_weights({3: 2.0, 4: 1.0})] * 3]
    apart = []
    for own in weights:
        apart.append(model_lists(model, rows, SETTINGS_OF_THREE, OPTIONS, catalog, weights=own))
        shutil.rmtree("checkpoints")
    loads, load = [], TransformersEngine.load
    monkeypatch.setattr(TransformersEngine, "load", lambda *given, **more: loads.append(given) or load(*given, **more))
    asked.clear()
    with list_writer(model, rows, SETTINGS_OF_THREE, OPTIONS, catalog) as write:
        assert [write(own) for own in [*weights, *weights]] == [[lists] for lists in [*apart, *apart]]
    assert len(loads) == 1 and asked == [2, 1] * 3
    shutil.rmtree("checkpoints")
    read, distinct_runs = [], jump_forward.distinct_runs
    monkeypatch.setattr(jump_forward, "distinct_runs", lambda prompts: read.append(prompts) or distinct_runs(prompts))
    with list_writer(model, rows, SETTINGS_OF_THREE, replace(OPTIONS, batch_size=9), catalog) as write:
        assert write(*weights) == apart
    assert [len(distinct_runs(prompts)[0]) for prompts in read] == [3], "each prompt is read once"
    assert len({text for lists in apart for text in lists.texts}) > 3


ENTRIES = st.dictionaries(st.text(max_size=5), st.text(max_size=8), min_size=1, max_size=4)


@given(ENTRIES, ENTRIES)
def test_a_cache_keeps_what_was_appended(tmp_path_factory, first, second):
    path = tmp_path_factory.mktemp("caches") / "new" / "lists.sqlite"
    assert ListCache(path).read() == {}
    ListCache(path).append(first)
    ListCache(path).append(second)
    assert ListCache(path).read() == first | second


def test_processes_append_one_after_the_other(tmp_path):
    path = tmp_path / "lists.sqlite"
    with ListCache(path)._open() as other:
        other.execute("INSERT INTO lists VALUES ('b', 'y')")
        append = threading.Thread(target=ListCache(path).append, args=({"a": "x"},))
        append.start()
        append.join(0.3)
        assert append.is_alive()
    append.join()
    assert ListCache(path).read() == {"a": "x", "b": "y"}
