"""What a request asks of vLLM, as it travels to a server."""

import json

import numpy as np
import pytest

from convrec.generation.trie import ListRequest
from convrec.generation.vllm_requests import request_options, requested_list
from tests.generation.vocabularies import by_item, log_weights

REQUESTS = [ListRequest(3), ListRequest(2, {7, 1}), ListRequest(2, np.array([3, 1])), ListRequest(1, [], [4, 2])]
REQUESTS += [ListRequest(1, (0,), []), ListRequest(2, [], None, log_weights({3: 0.5, 1: -2.0}))]


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_list_is_read_as_it_was_asked_for(request_):
    options = json.loads(json.dumps(request_options(request_)))
    assert all(isinstance(value, int | float | list) for value in options.values()), "what vllm_xargs takes"
    read = requested_list({"other": 1, **options})
    assert (read.length, set(read.banned)) == (request_.length, set(request_.banned))
    assert by_item(read.log_weights) == by_item(request_.log_weights)
    assert read.allowed == (None if request_.allowed is None else sorted(request_.allowed))


def test_a_request_without_a_list_is_not_constrained():
    assert requested_list(None) is requested_list({}) is requested_list({"other": 1}) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"catalog_list_length": 0},
        {"catalog_list_banned": "12"},
        {"catalog_list_banned": [-1]},
        {"catalog_list_banned": [2**70]},
        {"catalog_list_weighted": [2**31], "catalog_list_log_weights": [0.5]},
        {"catalog_list_log_weights": ["a"], "catalog_list_weighted": [1]},
        {"catalog_list_log_weights": [0.5], "catalog_list_weighted": [1, 2]},
    ],
)
def test_another_value_is_rejected(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        requested_list({**request_options(ListRequest(2)), **changes})
