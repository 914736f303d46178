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


class Compiler:
    """Compiles functions for any shapes; once it has failed, the functions themselves run, and the log says why.

    It runs in the first call, and layers of one class share its code. A failure of the backward pass is not caught.
    """

    def __init__(self) -> None:
        self._works = True

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the compiled function."""
        compiled = torch.compile(function, dynamic=True)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._works:
                try:
                    return compiled(*args, **kwargs)
                except (TorchDynamoException, InductorError) as error:
                    self._works = False
                    reason = str(error).split("\n", 1)[0]
                    logger.warning("the model runs without torch.compile, which fails: %s", reason)
            return function(*args, **kwargs)

        return run


def compile_layers(model: torch.nn.Module) -> None:
    """Compile a model's layers in place, for calls with a layout."""
    compiler = Compiler()
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = _with_layout(layer.forward, compiler.compile(layer.forward))


def _with_layout(eager: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(eager)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return (eager if kwargs.get("layout") is None else compiled)(*args, **kwargs)

    return forward
