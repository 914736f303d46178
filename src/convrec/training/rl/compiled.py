"""Layers and head compiled for the passes over packed rows: norms, rotary embeddings and softmax become few kernels.

Rollouts use the layers as they are: their shapes and caches change at every token.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError
from transformers.modeling_layers import GradientCheckpointingLayer

logger = logging.getLogger(__name__)


def compiled_or_eager(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function compiled for any shapes; if the compiler fails, the function itself runs, and the log says why.

    The compiler runs in the first call, and layers of one class share its code.
    """
    compiled = torch.compile(function, dynamic=True)
    works = True

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal works
        if works:
            try:
                return compiled(*args, **kwargs)
            except (TorchDynamoException, InductorError) as error:
                works = False
                logger.warning("%s runs without torch.compile, which fails: %s", name, str(error).split("\n", 1)[0])
        return function(*args, **kwargs)

    return run


def compile_layers(model: torch.nn.Module) -> None:
    """Compile a model's layers in place, for calls with a layout."""
    for name, layer in model.named_modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = _with_layout(layer.forward, compiled_or_eager(layer.forward, name))


def _with_layout(eager: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(eager)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return (eager if kwargs.get("layout") is None else compiled)(*args, **kwargs)

    return forward
