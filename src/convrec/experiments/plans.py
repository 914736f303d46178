"""`convrec preflight --profile`: the memory of a profile's trainings on each GPU, and settings with which they fit.

All of it is estimated from shapes (`estimate`) and needs no GPU, no data and no weights.
"""

import itertools
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from convrec.config.params import Params
from convrec.config.training import Training
from convrec.errors import InputError
from convrec.experiments.estimate import Estimate, estimate_step, model_config
from convrec.experiments.memory import LESS_MEMORY, is_allowed, set_options, smaller_settings, with_settings
from convrec.hardware.machine import GIB
from convrec.paths import Paths

RUNTIME = int(1.5 * GIB)  # CUDA and its libraries on each GPU; not measured yet
_ADAPTERS = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.0}
_VLLM_SHARES = (0.3, 0.2)
_PROCESSES = (2, 4, 8, 16)
_SHARE = "rank_grpo.vllm_gpu_memory_utilization"


@dataclass(frozen=True)
class Plan:
    """A training stage with changed settings, and the memory that it uses on each GPU, in bytes."""

    stage: str
    changed: dict[str, Any]
    estimate: Estimate
    vllm: int

    @property
    def total(self) -> int:
        """The memory of one GPU that the stage needs."""
        return self.estimate.tensors + self.vllm + self.reserve

    @property
    def reserve(self) -> int:
        """What the allocator, CUDA and its libraries hold."""
        return self.estimate.allocator + RUNTIME

    @property
    def trains_the_same(self) -> bool:
        """Whether the settings lead to the same updates."""
        return f"{self.stage}.lora" not in self.changed


def show_plans(params: Params, paths: Paths, memory: float | None) -> None:
    """Print the memory of `sft` and `rank_grpo` on each GPU; with a GPU of `memory` GiB, also how they fit.

    Raises `InputError` if settings have to change, or nothing fits.
    """
    console = Console(highlight=False, soft_wrap=True)
    config = model_config(params, paths.root)
    limit = None if memory is None else int(memory * GIB)
    fitting: dict[str, list[Plan]] = {}
    shown = []
    for stage in ("sft", "rank_grpo"):
        with console.status(f"{stage}: estimating"):
            given = _plan(params, stage, config, limit, {})
            shown.append(given)
            if limit is not None and given.total > limit:
                fitting[stage] = find_plans(params, stage, config, limit)
                shown += fitting[stage]
    console.print(f"{params.base_model.name}: memory of each GPU in GiB, estimated from shapes")
    console.print(_table(shown))
    if _has_vllm(params, "rank_grpo") and limit is None:
        console.print(f"vLLM's share is not included: {params.rank_grpo.vllm_gpu_memory_utilization:.0%} of each GPU.")
    if limit is None:
        console.print("To find settings that fit your GPU, give its memory: --memory GIB")
    elif fitting:
        raise InputError(_advice(params.common.profile, memory, fitting))
    else:
        console.print(f"Both trainings fit in {memory:g} GiB.")


def _advice(profile: str, memory: float | None, fitting: dict[str, list[Plan]]) -> str:
    lines = [f"{memory:g} GiB on each GPU are too little for {' and '.join(fitting)}"]
    lines += [f"{stage}: nothing that was tried fits; {LESS_MEMORY}" for stage, plans in fitting.items() if not plans]
    found = [plans for plans in fitting.values() if plans]
    for chosen in [[plans[0] for plans in found], [plans[-1] for plans in found]][: max(map(len, found), default=0)]:
        settings = {name: value for plan in chosen for name, value in plan.changed.items()}
        same = all(plan.trains_the_same for plan in chosen)
        kind = "these settings train the same" if same else "these train adapters, that is, fewer weights"
        lines.append(f"{kind}: convrec profile {profile} {set_options(settings)}")
    return "\n".join(lines)


def _table(plans: list[Plan]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("stage", "settings", "weights", "grads", "AdamW", "activations", "vLLM", "rest", "all"):
        table.add_column(heading, justify="left" if heading in ("stage", "settings") else "right", no_wrap=True)
    for plan in plans:
        changes = {name.split(".", 1)[1]: value for name, value in plan.changed.items()}
        processes, adapters = changes.get("num_processes"), "lora" in changes
        given = f"ZeRO-3, {processes}" if processes else "adapters" if adapters else "changed" if changes else "as set"
        sizes = (*astuple(plan.estimate), plan.vllm, plan.reserve, plan.total)
        table.add_row(plan.stage, given, *(f"{size / GIB:.1f}" for size in sizes))
    return table


def find_plans(params: Params, stage: str, config: Any, limit: int) -> list[Plan]:
    """Return how the stage fits `limit` bytes of each GPU: on as many GPUs as now, or else two choices.

    The choices are ZeRO-3 over the fewest GPUs on which it fits, and adapters. Each is left out if it does not fit with
    any batch size.
    """
    own = _shrunk(params, stage, config, limit, {})
    if own is not None:
        return [own]
    sharded = (_shrunk(params, stage, config, limit, changes) for changes in _sharded(params, stage))
    lora = {f"{stage}.lora": _ADAPTERS}
    adapters = _shrunk(params, stage, config, limit, lora) if is_allowed(params, lora) else None
    return [plan for plan in (next(filter(None, sharded), None), adapters) if plan is not None]


def _sharded(params: Params, stage: str) -> Iterator[dict[str, Any]]:
    """Yield the settings of ZeRO-3 over more and more processes with the same effective batch."""
    training: Training = getattr(params, stage)
    now = training.num_processes if training.launch else 1
    is_sharded = any(name in (training.launch or "") for name in ("zero3", "fsdp"))
    least = now + 1 if is_sharded else now
    steps = training.gradient_accumulation_steps * now
    for number in _PROCESSES:
        changes = {
            f"{stage}.launch": "configs/accelerate/zero3.yaml",
            f"{stage}.num_processes": number,
            f"{stage}.gradient_accumulation_steps": steps // number,
        }
        if number >= least and steps % number == 0 and is_allowed(params, changes):
            yield changes


def _shrunk(params: Params, stage: str, config: Any, limit: int, changed: dict[str, Any]) -> Plan | None:
    """Return the first plan that fits with these changes, smaller and smaller micro-batches, and less for vLLM."""
    start = with_settings(params, changed)
    share, estimates = start.rank_grpo.vllm_gpu_memory_utilization, list[Estimate]()
    lower = [least for least in _VLLM_SHARES if least < share] if _has_vllm(start, stage) else []
    for given in (share, *lower):
        settings = changed | ({_SHARE: given} if given < share else {})
        for number in itertools.count():
            own = with_settings(params, settings)
            if number == len(estimates):
                estimates.append(estimate_step(own, stage, config))
            plan = Plan(stage, settings, estimates[number], _vllm_bytes(own, stage, limit))
            if plan.total <= limit:
                return plan
            smaller = smaller_settings(own, stage)
            if smaller is None:
                break
            settings = settings | smaller
    return None


def _plan(params: Params, stage: str, config: Any, limit: int | None, changed: dict[str, Any]) -> Plan:
    own = with_settings(params, changed)
    return Plan(stage, changed, estimate_step(own, stage, config), _vllm_bytes(own, stage, limit))


def _has_vllm(params: Params, stage: str) -> bool:
    """Tell whether vLLM keeps a share of each GPU during the stage."""
    return stage == "rank_grpo" and params.rank_grpo.rollouts == "vllm_colocate"


def _vllm_bytes(params: Params, stage: str, limit: int | None) -> int:
    return int(params.rank_grpo.vllm_gpu_memory_utilization * (limit or 0)) if _has_vllm(params, stage) else 0
