"""Requests for each prompt to a stand-in for TRL's client; tests/gpu/test_vllm.py trains with vLLM."""

from types import SimpleNamespace

import pytest
import torch
from peft import get_peft_model

from convrec.generation.export import lora_config
from convrec.generation.pretrained import load_model, load_tokenizer
from convrec.training.rl.vllm_rollouts import constrain_requests, send_item_rows
from tests.training.rl.tiny import CATALOG, make_constraint

PROCESSOR = "convrec.generation.vllm_constraint:VllmCatalogConstraint"


class _Client:
    base_url = "http://gpu1:8000"

    def __init__(self, processors, mode="processed_logprobs"):
        self._model = {"logits_processors": processors, "logprobs_mode": mode}

    def get_server_info(self):
        return {"model_config": self._model}

    def generate(self, prompts, n, generation_kwargs, repetition_penalty):
        (prompt,) = prompts
        generation_kwargs = {**generation_kwargs, "penalty": repetition_penalty}
        return {"prompt_ids": prompts, "asked": [(prompt[0], place, generation_kwargs) for place in range(n)]}


def _generation(*arguments):
    accelerator = SimpleNamespace(is_main_process=True)
    return SimpleNamespace(mode="server", accelerator=accelerator, vllm_client=_Client(*arguments))


def test_each_prompt_is_a_request_with_its_own_seen_titles(tiny_model):
    constraint, generation = make_constraint(tiny_model), _generation([PROCESSOR])
    prompts = [[number] for number in range(100)]
    rows = [{"seen_titles": [CATALOG.items[number % 2].title]} for number in range(100)]
    rows[7] |= {"guided_items": [2, 3], "log_weights": [0.5, -1.0]}
    constraint.begin(prompts, rows)
    constrain_requests(generation, constraint)
    asked = {"n": 2, "generation_kwargs": {"seed": 1}, "repetition_penalty": 1.5}
    found = generation.vllm_client.generate(prompts=prompts, **asked)
    assert found["prompt_ids"] == prompts
    for number, (prompt, place, options) in enumerate(found["asked"]):
        assert (prompt, place) == divmod(number, 2)
        expected = {"catalog_list_length": 2, "catalog_list_banned": [prompt % 2]}
        if prompt == 7:
            expected |= {"catalog_list_weighted": [2, 3], "catalog_list_log_weights": [0.5, -1.0]}
        assert options == {"seed": 1, "penalty": 1.5, "vllm_xargs": expected}
    assert generation.vllm_client.base_url == "http://gpu1:8000"


@pytest.mark.parametrize("arguments", [(None,), ([],), (["a.b:C"],), ([PROCESSOR], "raw_logprobs")])
def test_a_server_without_the_constraint_is_rejected(tiny_model, arguments):
    with pytest.raises(ValueError, match="'http://gpu1:8000': .*; start it with `convrec vllm-server --training`"):
        constrain_requests(_generation(*arguments), make_constraint(tiny_model))


def test_item_rows_that_adapters_train_are_sent_with_the_embeddings(item_model):
    model = load_model(item_model)
    names = [name for name, _ in model.named_parameters()]
    adapted = get_peft_model(model, lora_config(model.config, load_tokenizer(item_model), 2, 4, 0.0))
    deltas = [value for name, value in adapted.named_parameters() if "trainable_tokens_delta" in name]
    (delta,) = deltas
    torch.nn.init.ones_(delta)

    def named_params():  # as TRL names them
        adapted.merge_adapter()
        for name, value in adapted.named_parameters():
            if adapted.prefix not in name:
                yield name.removeprefix("base_model.model.").replace(".base_layer", ""), value.data
        adapted.unmerge_adapter()

    generation = SimpleNamespace(_iter_named_params=named_params)
    send_item_rows(generation)
    sent = {name: value.clone() for name, value in generation._iter_named_params()}
    assert sorted(sent) == sorted(names)
    assert sent["model.embed_tokens.weight"][-len(CATALOG) :].eq(1).all()
