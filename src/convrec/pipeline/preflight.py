"""`convrec preflight`: what a run needs is checked, and its most expensive steps really run, before the run starts."""

import importlib.util
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil
from rich.console import Console
from rich.markup import escape

from convrec.data.sources.feedback import FILE
from convrec.generation.hub import model_license
from convrec.project.config.params import Params
from convrec.project.config.training import Training
from convrec.project.errors import InputError, Unavailable
from convrec.project.machine import GIB, gpu_bytes, gpu_names
from convrec.project.paths import Paths
from convrec.project.table import TextTable
from convrec.training.launch import read_nodes

if TYPE_CHECKING:
    from convrec.pipeline.trial import Trial


class Check(NamedTuple):
    """One condition: its name, what was found, and what to do if it does not hold (empty: it holds)."""

    name: str
    found: str
    remedy: str = ""


def _machine(params: Params, paths: Paths) -> Iterator[Check]:
    yield Check("libraries", ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl")))
    yield Check("disk", f"{shutil.disk_usage(paths.root).free / GIB:.0f} GiB free")
    teacher = params.demonstrations.teacher
    if teacher.kind == "llm":
        yield Check("teacher", str(teacher.base_url), "" if os.environ.get("OPENAI_API_KEY") else "set OPENAI_API_KEY")


def _libraries(params: Params, _paths: Paths) -> Iterator[Check]:
    launched = [params.sft.launch or "", params.rank_grpo.launch or ""]
    needed = {
        "vLLM": params.evaluate.engine == "vllm" or params.rank_grpo.rollouts == "vllm_colocate",
        "DeepSpeed": any("zero" in launch for launch in launched),
        "sentence_transformers": params.demonstrations.embedder.name != "tfidf",
    }
    for name in (name for name, is_needed in needed.items() if is_needed):
        found = importlib.util.find_spec(name.lower()) is not None
        extra = "embedders" if name == "sentence_transformers" else "gpu"
        yield Check(name, "installed" if found else "not installed", "" if found else f"pip install -e '.[{extra}]'")


def _gpus(params: Params, _paths: Paths) -> Iterator[Check]:
    import torch  # noqa: PLC0415  (seconds)

    names = gpu_names()
    is_missing = params.common.device == "cuda" and not names
    remedy = "install torch's CUDA build and the driver, or set common.device to auto" if is_missing else ""
    yield Check("GPUs", f"{', '.join(names) or 'none'} (CUDA {torch.version.cuda or 'none'})", remedy)
    if names and params.base_model.dtype == "bfloat16" and not torch.cuda.is_bf16_supported():
        yield Check("bfloat16", f"not supported by {names[0]}", "set base_model.dtype to float32")


def _launches(params: Params, _paths: Paths) -> Iterator[Check]:
    names = gpu_names()
    for stage in ("sft", "rank_grpo"):
        config: Training = getattr(params, stage)
        if config.launch is not None and names:
            nodes = read_nodes().count
            most = nodes * len(names)
            found = f"{config.num_processes} processes, {len(names)} GPUs"
            remedy = f"set {stage}.num_processes to {most} or fewer" if config.num_processes > most else ""
            yield Check(f"{stage}.launch", f"{found} on each of {nodes} nodes" if nodes > 1 else found, remedy)


def _data(params: Params, _paths: Paths) -> Iterator[Check]:
    data = params.data
    if "feedback" in data.sources and not FILE.is_file():
        yield Check("data", f"{FILE}: no such file", "write it with `convrec feedback export`")
    elif data.sources[0] == "synthetic":
        yield Check("data", "simulated by the stage `data`")
    else:
        remedy = "" if Path(data.path).is_dir() else "put the source's files there (docs/data.md)"
        yield Check("data", f"{data.path} (not read here)", remedy)


def _models(params: Params, _paths: Paths) -> Iterator[Check]:
    """Yield a check for each model of the hub: whether this account can fetch it, and its license."""
    from huggingface_hub import constants  # noqa: PLC0415  (slow)

    base, embedder, aligned = params.base_model, params.demonstrations.embedder, params.rank_grpo
    named = [(base.name, base.revision), (embedder.name, embedder.revision)]
    start, _, pinned = (aligned.start, "", "") if Path(aligned.start).is_dir() else aligned.start.partition("@")
    named += [(start, pinned or None), (aligned.rewards.model or "", None)]
    for name, revision in named:
        if name in ("", "embedded", "tfidf", "sft") or name.startswith("models:/") or Path(name).is_dir():
            continue
        if name == embedder.name and "/" not in name:
            name = f"sentence-transformers/{name}"  # noqa: PLW2901  (where that library looks)
        if constants.HF_HUB_OFFLINE:
            yield Check("model", f"{name}: HF_HUB_OFFLINE is set, so the hub is not asked")
            continue
        try:
            found = f"license {model_license(name, revision)}; {revision or 'no revision is pinned'}"
        except InputError as error:
            yield Check("model", f"{name} cannot be fetched", str(error))
        else:
            yield Check("model", f"{name}: {found}")


def _tracking(_params: Params, paths: Paths) -> Iterator[Check]:
    from convrec.registry.tracking import connect, shown_uri  # noqa: PLC0415  (imports mlflow)

    try:
        connect(paths.root)
    except (InputError, Unavailable) as error:
        yield Check("tracking server", "cannot be used", str(error))
    else:
        yield Check("tracking server", shown_uri(paths.root))


CHECKS = (_machine, _libraries, _gpus, _launches, _data, _models, _tracking)


def require_machine(params: Params) -> None:
    """Raise `InputError` if a library or a GPU is missing that the parameters need."""
    needs_gpus = params.common.device == "cuda" or bool(params.sft.launch or params.rank_grpo.launch)
    needed = (_libraries, _gpus, _launches) if needs_gpus else (_libraries,)
    _raise_problems(found for check in needed for found in check(params, Paths()))


def _raise_problems(checks: Iterable[Check]) -> None:
    if problems := [f"{check.name}: {check.found}; {check.remedy}" for check in checks if check.remedy]:
        raise InputError("\n".join(problems))


def preflight(params: Params, paths: Paths, *, fast: bool, memory: float | None) -> None:
    """Check the machine and, unless `fast`, run the most expensive steps of every stage; print both.

    `memory` limits each stage's resident memory in GiB; the default is the memory that is free now.
    Raises `InputError` if a check fails, or settings have to change, or for steps on several nodes.
    """
    nodes = read_nodes().count
    if nodes > 1 and not fast:
        raise InputError(
            f"NNODES = {nodes}: preflight runs its steps on one node; give --fast, or unset NNODES and set "
            "num_processes to the GPUs of one node"
        )
    console = Console(highlight=False, soft_wrap=True)
    checks = []
    for check in (found for make in CHECKS for found in make(params, paths)):
        mark = "[red]✗[/red]" if check.remedy else "[green]✓[/green]"
        console.print(f"{mark} {escape(f'{check.name}: {check.found}')}")
        checks.append(check)
    _raise_problems(checks)
    if fast:
        return
    from convrec.pipeline.trial import run_trials  # noqa: PLC0415  (imports torch)

    for name in ("train", "validation", "test"):
        paths.require_split(name)
    limit = int(memory * GIB) if memory is not None else psutil.virtual_memory().available

    console.print(f"\nLongest prompts and lists, with at most {limit / GIB:.1f} GiB of memory:")
    last: dict[str, Trial] = {}
    for trial in run_trials(params, paths, limit):
        result = "out of memory" if trial.exceeded else "fits" if trial.status == 0 else f"status {trial.status}"
        console.print(f"  {trial.stage}: {result} ({trial.seconds:.0f} s)")
        last[trial.stage] = trial
    trials = list(last.values())
    _print_table(trials)
    changed = {name: value for trial in trials for name, value in trial.changed.items()}
    if changed:
        options = " ".join(f"--set {name}={json.dumps(value)}" for name, value in changed.items())
        raise InputError(
            "memory does not suffice for the parameters; these settings fit and train the same: "
            f"convrec profile {params.common.profile} {options}"
        )
    console.print("Everything fits. Start the run: python -m flows.train")


def _print_table(trials: "list[Trial]") -> None:
    sizes = gpu_bytes()[1]
    header = ["stage", "memory", *(f"GPU {index}" for index in range(len(sizes))), "s/step", "all steps, at most"]
    rows = []
    for trial in trials:
        used = [f"{peak / GIB:.1f} of {size / GIB:.0f} GiB" for peak, size in zip(trial.gpu_peaks, sizes, strict=True)]
        cells = [trial.stage, f"{trial.peak / GIB:.2f} GiB", *used]
        if trial.seconds_per_step is not None and trial.whole_seconds is not None:
            hours = trial.whole_seconds / 3600
            cells += [f"{trial.seconds_per_step:.2f}", f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"]
        rows.append(cells)
    TextTable(header, rows).print(120)
