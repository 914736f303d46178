"""What a request asks of vLLM, as plain JSON: the same for its offline engine and for its server. Needs no vLLM.

A constrained list is described to the logits processor by extra arguments of the request, which vLLM's server takes
only as numbers and lists of numbers.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeGuard

from convrec.generation.constraint import ListRequest
from convrec.project.errors import InputError

_LENGTH, _BANNED, _ALLOWED = "catalog_list_length", "catalog_list_banned", "catalog_list_allowed"
_WEIGHTED, _WEIGHTS = "catalog_list_weighted", "catalog_list_log_weights"


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
    options: dict[str, Any] = {_LENGTH: request.length, _BANNED: _plain(request.banned)}
    if request.allowed is not None:
        options[_ALLOWED] = _plain(request.allowed)
    if request.log_weights:
        options[_WEIGHTED] = [int(item) for item in request.log_weights]
        options[_WEIGHTS] = [float(value) for value in request.log_weights.values()]
    return options


def check_penalty(repetition_penalty: float, name: str) -> None:
    """Raise `InputError` for a repetition penalty of guided lists: vLLM penalizes what the guidance has added as well.

    `name` is what sets the penalty.
    """
    if repetition_penalty != 1:
        raise InputError(
            f"{name} = {repetition_penalty}: vLLM cannot guide lists under a repetition penalty; set it to 1.0, set "
            "guidance.fit_prompts to 0, or use transformers"
        )


def requested_list(options: Mapping[str, Any] | None) -> ListRequest | None:
    """Return the list that extra arguments ask for; None for a request that is not constrained.

    Raises `ValueError` for other values than `request_options` writes.
    """
    given = options or {}
    if not given.keys() & {_LENGTH, _BANNED, _ALLOWED, _WEIGHTED, _WEIGHTS}:
        return None
    length, banned, allowed = given.get(_LENGTH), given.get(_BANNED, []), given.get(_ALLOWED)
    if not _is_whole(length) or length < 1:
        raise ValueError(f"{_LENGTH} = {length!r:.40}: give a whole number from 1")
    weighted, weights = given.get(_WEIGHTED, []), given.get(_WEIGHTS, [])
    for name, items in ((_BANNED, banned), (_ALLOWED, allowed if _ALLOWED in given else []), (_WEIGHTED, weighted)):
        if not isinstance(items, Sequence) or not all(_is_whole(item) and item >= 0 for item in items):
            raise ValueError(f"{name} = {items!r:.40}: give a list of items, whole numbers from 0")
    if not isinstance(weights, Sequence) or not all(isinstance(value, int | float) for value in weights):
        raise ValueError(f"{_WEIGHTS} = {weights!r:.40}: give a list of numbers")
    if len(weights) != len(weighted):
        raise ValueError(f"{_WEIGHTS}: {len(weights)} numbers for {len(weighted)} items of {_WEIGHTED}; give as many")
    return ListRequest(length, banned, allowed, dict(zip(weighted, weights, strict=True)))


def _plain(items: Collection[int]) -> list[int]:
    return sorted(int(item) for item in items)


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
