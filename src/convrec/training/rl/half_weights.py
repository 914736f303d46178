"""Weights in bfloat16 for all passes, with float32 masters in the optimizer.

Autocast casts each weight and activation anew in every layer and pass, and keeps the residual stream in float32. Here
the model itself is in bfloat16. Gradients accumulate in float32, and AdamW updates float32 masters, so that updates
below a weight's precision add up.
"""

from typing import Any

import torch

_MASTERS = "masters"  # their name in the optimizer's state


def takes_half_weights(model: Any, args: Any, accelerator: Any) -> bool:
    """Return whether a training can hold its weights in bfloat16: in one process, without DeepSpeed or FSDP, by AdamW.

    Otherwise weights stay in float32 and the passes use autocast; DeepSpeed and FSDP have masters of their own. vLLM
    gets adapters by merging them into the weights and back, which bfloat16 would not restore.
    """
    is_alone = accelerator.num_processes == 1 and accelerator.distributed_type == "NO"
    by_adamw = getattr(args.optim, "value", args.optim) in ("adamw_torch", "adamw_torch_fused")
    return bool(args.bf16) and is_alone and by_adamw and not (args.use_vllm and hasattr(model, "peft_config"))


def cast_weights(model: torch.nn.Module) -> None:
    """Cast the parameters of a model to bfloat16 in place; buffers, as the rotary frequencies, keep their precision."""
    for own in model.parameters():
        if own.is_floating_point():
            own.data = own.data.to(torch.bfloat16)


def halve_weights(model: torch.nn.Module) -> dict[torch.nn.Parameter, torch.Tensor]:
    """Cast a model's weights to bfloat16 in place; return the float32 master of each trained parameter."""
    masters = {own: own.detach().float().clone() for own in model.parameters() if own.requires_grad}
    cast_weights(model)
    for own in masters:
        own.grad_dtype = torch.float32
    return masters


class MasterAdamW(torch.optim.AdamW):
    """AdamW over float32 masters, whose values are copied to the bfloat16 parameters after each step.

    Its parameters are the masters; their gradients are those of the model's parameters. The masters are part of its
    state, so that a checkpoint resumes exactly.
    """

    def __init__(self, optimizer: torch.optim.AdamW, masters: dict[torch.nn.Parameter, torch.Tensor]):
        """Take the groups and settings of `optimizer`, which has not made a step."""
        self._pairs = [(own, masters[own]) for group in optimizer.param_groups for own in group["params"]]
        groups = [{**group, "params": [masters[own] for own in group["params"]]} for group in optimizer.param_groups]
        super().__init__(groups, fused=optimizer.defaults["fused"])

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for own, master in self._pairs:
            master.grad = own.grad
        loss = super().step(closure)
        for _, master in self._pairs:
            master.grad = None
        self._copy()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for own, _ in self._pairs:
            own.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), _MASTERS: [master for _, master in self._pairs]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for (_, master), saved in zip(self._pairs, state_dict[_MASTERS], strict=True):
            master.copy_(saved)
        self._copy()

    def _copy(self) -> None:
        weights, masters = zip(*self._pairs, strict=True)
        torch._foreach_copy_(weights, masters)
