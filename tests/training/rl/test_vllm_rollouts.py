"""Requests for each prompt to a stand-in for TRL's client; tests/gpu/test_vllm.py trains with vLLM."""

from types import SimpleNamespace

import pytest

from convrec.training.rl.vllm_rollouts import constrain_requests
from tests.training.rl.tiny import CATALOG, make_constraint

PROCESSOR = "convrec.generation.vllm_constraint:VllmCatalogConstraint"


class _Client:
    base_url = "http://gpu1:8000"

    def __init__(self, processors, mode="processed_logprobs"):
        self._model = {"logits_processors": processors, "logprobs_mode": mode}

    def get_server_info(self):
        return {"model_config": self._model}

    def generate(self, prompts, n, generation_kwargs):
        (prompt,) = prompts
        return {"prompt_ids": prompts, "asked": [(prompt[0], place, generation_kwargs) for place in range(n)]}


def _generation(*arguments):
    accelerator = SimpleNamespace(is_main_process=True)
    return SimpleNamespace(mode="server", accelerator=accelerator, vllm_client=_Client(*arguments))


def test_each_prompt_is_a_request_with_its_own_seen_titles(tiny_model):
    constraint, generation = make_constraint(tiny_model), _generation([PROCESSOR])
    prompts = [[number] for number in range(100)]
    constraint.begin(prompts, [{"seen_titles": [CATALOG.items[number % 2].title]} for number in range(100)])
    constrain_requests(generation, constraint)
    found = generation.vllm_client.generate(prompts=prompts, n=2, generation_kwargs={"seed": 1})
    assert found["prompt_ids"] == prompts
    for number, (prompt, place, options) in enumerate(found["asked"]):
        assert (prompt, place) == divmod(number, 2)
        banned = [prompt % 2]
        assert options == {"seed": 1, "vllm_xargs": {"catalog_list_length": 2, "catalog_list_banned": banned}}
    assert generation.vllm_client.base_url == "http://gpu1:8000"


@pytest.mark.parametrize("arguments", [(None,), ([],), (["a.b:C"],), ([PROCESSOR], "raw_logprobs")])
def test_a_server_without_the_constraint_is_rejected(tiny_model, arguments):
    with pytest.raises(ValueError, match="'http://gpu1:8000': .*; start it with `convrec vllm-server --training`"):
        constrain_requests(_generation(*arguments), make_constraint(tiny_model))
