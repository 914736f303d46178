import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from transformers import GenerationConfig

from convrec.generation import jump_forward
from convrec.generation.engine import EngineOptions, TransformersEngine
from convrec.generation.pretrained import load_tokenizer
from convrec.generation.prompt_tokens import token_ids
from convrec.generation.trie import ListRequest
from convrec.pipeline.memory import with_settings
from convrec.project.config.params import load_params
from convrec.project.errors import InputError
from tests.generation.random_model import MAX_NEW, PENALTIES, REQUESTS, make_random_model, make_trie, prompts_of
from tests.small_project import ROOT


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_random_model(tmp_path_factory.mktemp("random") / "model")


def _engine(model: Path, repetition_penalty: float, batch_size: int = 4, trie=None) -> TransformersEngine:
    tokenizer = load_tokenizer(model)
    options = EngineOptions("transformers", "cpu", batch_size, 1, 0.5)
    return TransformersEngine.load(str(model), tokenizer, options, MAX_NEW, repetition_penalty, trie)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_answers_keep_the_order_of_the_prompts_whatever_the_batch(model, penalty):
    """Even where the padding is the end token, which a penalised padding would keep from being written."""
    alone, together = _engine(model, penalty, 1), _engine(model, penalty, 4)
    together.tokenizer.pad_token = together.tokenizer.eos_token
    assert alone.generate(prompts_of(9)) == together.generate(prompts_of(9))
    assert alone.generate([]) == []


@pytest.mark.parametrize("setting", [{"suppress_tokens": list(range(5, 200))}, {"no_repeat_ngram_size": 1}])
def test_the_model_s_own_settings_of_generation_stay_out(model, tmp_path, setting):
    shutil.copytree(model, tmp_path / "model")
    GenerationConfig(**setting).save_pretrained(tmp_path / "model")
    plain, with_settings = _engine(model, 1.0), _engine(tmp_path / "model", 1.0)
    assert with_settings.generate(prompts_of(4)) == plain.generate(prompts_of(4))


def test_free_lists_are_those_of_transformers_own_cache(model, monkeypatch):
    found = []
    for can_jump in (jump_forward.can_jump, lambda _: False):
        monkeypatch.setattr(jump_forward, "can_jump", can_jump)
        monkeypatch.setattr(jump_forward, "_ROOM", 3)  # so that it is made anew in a list
        found.append(_engine(model, 1.5).generate(prompts_of(9)))
    assert found[0] == found[1]


def test_every_prompt_of_a_constrained_engine_needs_a_request(model):
    trie = make_trie(load_tokenizer(model))
    with pytest.raises(ValueError, match="0 requests for 11 prompts"):
        _engine(model, 1.0, trie=trie).generate(prompts_of(11))
    with pytest.raises(ValueError, match="11 requests for 11 prompts; with a trie"):
        _engine(model, 1.0).generate(prompts_of(11), REQUESTS)
    with pytest.raises(InputError, match="list of 50 items is asked for, and 49 of"):
        _engine(model, 1.0, trie=trie).generate(prompts_of(1), [ListRequest(50)])


def test_batches_come_as_they_finish_the_longest_prompts_first(model):
    engine = _engine(model, 1.0)
    prompts = token_ids(engine.tokenizer, prompts_of(9))
    batches = [[index for index, _ in batch] for batch in engine.stream(prompts)]
    order = [index for batch in batches for index in batch]
    assert [len(batch) for batch in batches] == [4, 4, 1] and sorted(order) == list(range(9))
    lengths = [len(prompts[index]) for index in order]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1]


def test_a_list_ends_before_the_end_token(model):
    engine = _engine(model, 1.0, 2)
    end = load_tokenizer(model).eos_token_id
    engine.complete = lambda prompts, requests: [[5, 6, end, 7], [8, 9, 10, 11]]
    decode = engine.tokenizer.decode
    assert engine.generate(prompts_of(2)) == [decode([8, 9, 10, 11]), decode([5, 6])]


def test_vllm_writes_the_lists_of_transformers(run_module, model, tmp_path):
    """Greedy lists in float32, free and from a catalog, with and without a penalty, which counts the prompt, too."""
    output = tmp_path / "lists.json"
    run_module("tests.generation.random_model", "--model", model, "--output", output)
    trie, expected = make_trie(load_tokenizer(model)), []
    for penalty in PENALTIES:
        expected.append(_engine(model, penalty).generate(prompts_of(11)))
        expected.append(_engine(model, penalty, trie=trie).generate(prompts_of(11), REQUESTS))
    assert json.loads(output.read_text()) == expected
    assert all(len(set(lists)) > 5 for lists in expected) and len({str(lists) for lists in expected}) == 4
    assert all(len(set(text.split("\n"))) == 6 for text in expected[1] + expected[3])


def _with_vllm(num_gpus=1):
    settings = {"evaluate.engine": "vllm", "evaluate.vllm_tensor_parallel_size": num_gpus}
    return EngineOptions.on_this_machine(**with_settings(load_params(ROOT / "params.yaml"), settings).engine_options())


def test_vllm_that_is_not_there_is_told_before_any_work(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"evaluate\.engine = 'vllm': .*pip install -e '\.\[gpu\]'"):
        _with_vllm()


def test_more_gpus_than_there_are_is_told_before_any_work(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert _with_vllm(2).tensor_parallel_size == 2
    with pytest.raises(InputError, match="evaluate.vllm_tensor_parallel_size = 3: this machine has 2 GPUs"):
        _with_vllm(3)
