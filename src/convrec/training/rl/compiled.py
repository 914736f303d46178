"""Layers compiled for the passes over packed rows: norms, rotary embeddings and gates become few kernels.

Rollouts use the same layers as they are: their shapes and caches change at every token.
"""

import functools
import logging
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError
from transformers.modeling_layers import GradientCheckpointingLayer

logger = logging.getLogger(__name__)


def compile_layers(model: torch.nn.Module) -> None:
    """Compile a model's layers in place; one of them is compiled in the first pass, and the others share its code.

    If the compiler fails in the first pass, the layers run as they are, and the log gives the reason.
    """
    state = {"works": True}
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = _either(layer.forward, state)


def _either(eager: Any, state: dict[str, bool]) -> Any:
    compiled = torch.compile(eager, dynamic=True)

    @functools.wraps(eager)
    def forward(*args: Any, layout: Any = None, **kwargs: Any) -> Any:
        if layout is None:
            return eager(*args, **kwargs)
        if state["works"]:
            try:
                return compiled(*args, layout=layout, **kwargs)
            except (TorchDynamoException, InductorError) as error:
                state["works"] = False
                logger.warning("layers run without torch.compile, which fails: %s", str(error).split("\n", 1)[0])
        return eager(*args, layout=layout, **kwargs)

    return forward
