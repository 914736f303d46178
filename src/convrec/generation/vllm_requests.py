"""What a request asks of vLLM, as plain JSON: the same for its offline engine and for its server. Needs no vLLM.

A constrained list is described to the logits processor by extra arguments of the request, which vLLM's server takes
only as numbers and lists of numbers.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, PositiveInt, model_validator

from convrec.generation.trie import ListRequest, LogWeights

_Item = Annotated[int, Field(ge=0, lt=2**31)]


class _Asked(BaseModel, strict=True):
    """The extra arguments of a constrained list; those of others are not read."""

    catalog_list_length: PositiveInt
    catalog_list_banned: list[_Item] = []
    catalog_list_allowed: list[_Item] | None = None
    catalog_list_weighted: list[_Item] = []
    catalog_list_log_weights: list[float] = []

    @model_validator(mode="after")
    def _each_has_a_weight(self) -> "_Asked":
        if len(self.catalog_list_weighted) != len(self.catalog_list_log_weights):
            raise ValueError("catalog_list_log_weights: give as many as items of catalog_list_weighted")
        return self


def decoding_options(max_tokens: int, repetition_penalty: float, end_token: int) -> dict[str, Any]:
    """Return how a list is decoded: fields of vLLM's `SamplingParams`, and of a request to its server."""
    return {
        "temperature": 0.0,
        "max_tokens": max_tokens,
        "repetition_penalty": repetition_penalty,
        "stop_token_ids": [end_token],
        "ignore_eos": True,  # of the model's configuration, which may name others
    }


def request_options(request: ListRequest) -> dict[str, Any]:
    """Return the extra arguments of a constrained list: `extra_args` of `SamplingParams`, `vllm_xargs` of a server.

    The request must be one that can be met (`CatalogTrie.check`): another would stop the engine.
    """
    options: dict[str, Any] = {"catalog_list_length": request.length}
    for name, items in (("banned", request.banned), ("allowed", request.allowed)):
        if items is not None:
            options[f"catalog_list_{name}"] = sorted(map(int, items))
    if request.log_weights:
        options["catalog_list_weighted"] = request.log_weights.items.tolist()
        options["catalog_list_log_weights"] = request.log_weights.logs.tolist()
    return options


def requested_list(options: Mapping[str, Any] | None) -> ListRequest | None:
    """Return the list that extra arguments ask for; None for a request that is not constrained.

    Raises `ValueError` (of pydantic) for other values than `request_options` writes.
    """
    if not options or not options.keys() & _Asked.model_fields.keys():
        return None
    asked = _Asked.model_validate(options)
    items = np.array(asked.catalog_list_weighted, np.int32)
    weights = LogWeights(items, np.array(asked.catalog_list_log_weights, np.float32))
    return ListRequest(asked.catalog_list_length, asked.catalog_list_banned, asked.catalog_list_allowed, weights)
