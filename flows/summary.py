"""The summary of a pipeline run: its decision, its results, the time of each stage and the machine."""

import os
import platform
from collections.abc import Mapping

import psutil

from flows.console import duration


def machine() -> str:
    """Return the processor's cores, the memory and the GPUs of this machine in a few words."""
    import torch

    memory = psutil.virtual_memory().total / 2**30
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [f"{cores} {platform.machine()} cores", f"{memory:.0f} GiB of memory", *gpus]
    return ", ".join(parts if gpus else [*parts, "no GPU"])


def run_summary(seconds: Mapping[str, float], all_stages: list[str], decision: str, results: str) -> str:
    """Return the summary as Markdown.

    `seconds` has the wall-clock time of each stage that ran; the others of `all_stages` were up to date. `decision` is
    a sentence, and `results` the table of the evaluation in Markdown; both may be empty.
    """
    rows = [f"| {stage} | {duration(seconds[stage]) if stage in seconds else 'up to date'} |" for stage in all_stages]
    total = sum(seconds.values())
    return "\n".join(
        [
            *([f"**{decision}**", ""] if decision else []),
            *([results.strip(), ""] if results else []),
            f"Machine: {machine()}; {total / 3600:.2f} hours.",
            "",
            "| stage | time |",
            "| --- | ---: |",
            *rows,
            f"| all | {duration(total)} |",
            "",
        ]
    )
