"""The summary of a pipeline run: its decision, its results, the time of each stage and the machine."""

import os
import platform
from collections.abc import Mapping
from contextlib import closing

import psutil

from convrec.demonstrations.calls import CallStore
from convrec.paths import Path
from flows.console import duration


def machine() -> str:
    """Return the processor's cores, the memory and the GPUs of this machine in a few words."""
    import torch

    memory = psutil.virtual_memory().total / 2**30
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [f"{cores} {platform.machine()} cores", f"{memory:.0f} GiB of memory", *gpus]
    return ", ".join(parts if gpus else [*parts, "no GPU"])


def teacher_cost(calls: Path) -> str:
    """Return the tokens and the cost of all calls of the LLM teacher in this folder; empty if there were none."""
    if not calls.exists():
        return ""
    with closing(CallStore(calls)) as store:
        spent = store.spent()
    if not spent.calls:
        return ""
    tokens = spent.prompt_tokens + spent.completion_tokens
    return f"Teacher, all runs in this folder: {spent.calls:,} calls, {tokens:,} tokens, cost {spent.cost:.2f}."


def run_summary(
    seconds: Mapping[str, float], all_stages: list[str], decision: str, results: str, teacher: str = ""
) -> str:
    """Return the summary as Markdown.

    `seconds` has the wall-clock time of each stage that ran; the others of `all_stages` were up to date. `decision` is
    a sentence, `results` the table of the evaluation in Markdown, and `teacher` a sentence about the teacher's cost;
    these three may be empty.
    """
    rows = [f"| {stage} | {duration(seconds[stage]) if stage in seconds else 'up to date'} |" for stage in all_stages]
    total = sum(seconds.values())
    return "\n".join(
        [
            *([f"**{decision}**", ""] if decision else []),
            *([results.strip(), ""] if results else []),
            f"Machine: {machine()}; {total / 3600:.2f} hours.",
            "",
            *([teacher, ""] if teacher else []),
            "| stage | time |",
            "| --- | ---: |",
            *rows,
            f"| all | {duration(total)} |",
            "",
        ]
    )
