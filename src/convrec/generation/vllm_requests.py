"""What a request asks of vLLM, as plain JSON: the same for its offline engine and for its server. Needs no vLLM.

A constrained list is described to the logits processor by extra arguments of the request, which vLLM's server takes
only as numbers and lists of numbers.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeGuard

from convrec.generation.constraint import ListRequest

_LENGTH, _BANNED, _ALLOWED = "catalog_list_length", "catalog_list_banned", "catalog_list_allowed"


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
    return options if request.allowed is None else {**options, _ALLOWED: _plain(request.allowed)}


def requested_list(options: Mapping[str, Any] | None) -> ListRequest | None:
    """Return the list that extra arguments ask for; None for a request that is not constrained.

    Raises `ValueError` for other values than `request_options` writes.
    """
    given = options or {}
    if not given.keys() & {_LENGTH, _BANNED, _ALLOWED}:
        return None
    length, banned, allowed = given.get(_LENGTH), given.get(_BANNED, []), given.get(_ALLOWED)
    if not _is_whole(length) or length < 1:
        raise ValueError(f"{_LENGTH} = {length!r:.40}: give a whole number from 1")
    for name, items in ((_BANNED, banned), (_ALLOWED, allowed if _ALLOWED in given else [])):
        if not isinstance(items, Sequence) or not all(_is_whole(item) and item >= 0 for item in items):
            raise ValueError(f"{name} = {items!r:.40}: give a list of items, whole numbers from 0")
    return ListRequest(length, banned, allowed)


def _plain(items: Collection[int]) -> list[int]:
    return sorted(int(item) for item in items)


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
