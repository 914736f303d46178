"""What a run needs of the machine and its surroundings, checked without any work."""

import importlib.util
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from convrec.config.params import Params
from convrec.config.training import Training
from convrec.data.sources.feedback import FILE
from convrec.errors import InputError, Unavailable
from convrec.hardware.machine import GIB, gpu_names
from convrec.models.hub import model_license
from convrec.paths import Paths
from convrec.training.nodes import read_nodes


@dataclass(frozen=True)
class Check:
    """One condition: its name, what was found, and what to do if it does not hold (empty: it holds)."""

    name: str
    found: str
    remedy: str = ""


def machine_checks(params: Params, paths: Paths) -> Iterator[Check]:
    """Yield all checks: libraries, GPUs, launches, disk, data, models, teacher and tracking server."""
    yield Check("libraries", ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl")))
    yield from _library_checks(params)
    yield from _gpu_checks(params)
    yield Check("disk", f"{shutil.disk_usage(paths.root).free / GIB:.0f} GiB free")
    yield _data_check(params)
    yield from _model_checks(params)
    if params.demonstrations.teacher.kind == "llm":
        has_key = bool(os.environ.get("OPENAI_API_KEY"))
        yield Check("teacher", str(params.demonstrations.teacher.base_url), "" if has_key else "set OPENAI_API_KEY")
    yield _tracking_check(paths)


def require_machine(params: Params) -> None:
    """Raise `InputError` if a library or a GPU is missing that the parameters need."""
    checks = [*_library_checks(params), *(_gpu_checks(params) if _needs_gpus(params) else ())]
    raise_problems(checks)


def raise_problems(checks: Iterable[Check]) -> None:
    """Raise `InputError` with the remedies of all checks that do not hold."""
    if problems := [f"{check.name}: {check.found}; {check.remedy}" for check in checks if check.remedy]:
        raise InputError("\n".join(problems))


def _needs_gpus(params: Params) -> bool:
    return params.common.device == "cuda" or bool(params.sft.launch or params.rank_grpo.launch)


def _library_checks(params: Params) -> Iterator[Check]:
    needs_vllm = params.evaluate.engine == "vllm" or params.rank_grpo.rollouts == "vllm_colocate"
    if needs_vllm:
        found = importlib.util.find_spec("vllm") is not None
        yield Check("vLLM", "installed" if found else "not installed", "" if found else "pip install -e '.[gpu]'")
    launched = [params.sft.launch, params.rank_grpo.launch]
    if any("zero" in name for name in launched if name):
        found = importlib.util.find_spec("deepspeed") is not None
        yield Check("DeepSpeed", "installed" if found else "not installed", "" if found else "pip install -e '.[gpu]'")


def _gpu_checks(params: Params) -> Iterator[Check]:
    import torch  # noqa: PLC0415  (seconds)

    names = gpu_names()
    wants_cuda = params.common.device == "cuda"
    remedy = (
        "install torch's CUDA build and the driver, or set common.device to auto" if wants_cuda and not names else ""
    )
    found = ", ".join(names) or "none"
    yield Check("GPUs", f"{found} (CUDA {torch.version.cuda or 'none'})", remedy)
    if names and params.base_model.dtype == "bfloat16" and not torch.cuda.is_bf16_supported():
        yield Check("bfloat16", f"not supported by {names[0]}", "set base_model.dtype to float32")
    for stage in ("sft", "rank_grpo"):
        config: Training = getattr(params, stage)
        if config.launch is not None and names:
            nodes = read_nodes().count
            most = nodes * len(names)
            remedy = f"set {stage}.num_processes to {most} or fewer" if config.num_processes > most else ""
            found = f"{config.num_processes} processes, {len(names)} GPUs"
            yield Check(f"{stage}.launch", f"{found} on each of {nodes} nodes" if nodes > 1 else found, remedy)


def _data_check(params: Params) -> Check:
    missing = "feedback" in params.data.sources and not (Path(params.data.feedback) / FILE).is_file()
    if missing:
        return Check("data", f"{params.data.feedback}: no {FILE}", "write it with `convrec feedback export`")
    if params.data.sources[0] == "synthetic":
        return Check("data", "simulated by the stage `data`")
    exists = Path(params.data.path).is_dir()
    return Check(
        "data", f"{params.data.path} (not read here)", "" if exists else "put the source's files there (docs/data.md)"
    )


def _model_checks(params: Params) -> Iterator[Check]:
    """Yield a check for each model of the hub: whether this account can fetch it, and its license."""
    from huggingface_hub import constants  # noqa: PLC0415  (slow)

    base, embedder, start = params.base_model, params.demonstrations.embedder, params.rank_grpo.start
    named = [(base.name, base.revision), (embedder.name, embedder.revision), (start, None)]
    named += [(params.rank_grpo.rewards.model or "", None)]
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


def _tracking_check(paths: Paths) -> Check:
    from convrec.tracking import connect, shown_uri  # noqa: PLC0415  (imports mlflow)

    try:
        connect(paths.root)
    except (InputError, Unavailable) as error:
        return Check("tracking server", "cannot be used", str(error))
    return Check("tracking server", shown_uri(paths.root))
