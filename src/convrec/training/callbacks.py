"""Callbacks that report a training: history on disk, progress in the log, metrics to the tracker."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from convrec.project.atomic import write_text

logger = logging.getLogger(__name__)

MetricSink = Callable[[dict[str, float], int], None]
Measure = Callable[[], dict[str, float]]
_SHOWN = ("loss", "reward", "kl")


class HistoryCallback(TrainerCallback):
    """Appends every logged metric to a JSON-lines file, passes it to a sink, and logs progress.

    When a training resumes, lines after the resumed step are dropped, so that each step is recorded once.
    """

    def __init__(self, path: Path, sink: MetricSink):
        self._path, self._sink = path, sink
        self._start_time, self._start_step, self._before = 0.0, 0, 0.0

    def elapsed(self) -> float:
        """Return the seconds of training so far, including those before an interruption."""
        return self._before + time.monotonic() - self._start_time

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        self._start_time, self._start_step = time.monotonic(), state.global_step
        kept = [row for row in read_history(self._path) if row["step"] <= state.global_step and state.global_step]
        self._before = max((row.get("seconds/elapsed", 0.0) for row in kept), default=0.0)
        write_text(self._path, "".join(json.dumps(row) + "\n" for row in kept))
        for row in kept:
            self._sink({key: value for key, value in row.items() if key != "step"}, int(row["step"]))
        if state.global_step:
            logger.info("resuming at step %d of %d", state.global_step, state.max_steps)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        metrics = {key: float(value) for key, value in logs.items() if isinstance(value, (int, float))}
        self.write({**metrics, "seconds/elapsed": self.elapsed()}, state.global_step)
        done = state.global_step - self._start_step
        seconds = (time.monotonic() - self._start_time) / max(1, done)
        left = seconds * (state.max_steps - state.global_step)
        figures = {key: metrics[key] for key in _SHOWN if key in metrics}
        shown = "  ".join(f"{key} {value:.4g}" for key, value in figures.items())
        logger.info(
            "step %d/%d  %s  %.1f s/step, %.0f s left",
            state.global_step,
            state.max_steps,
            shown,
            seconds,
            left,
            extra={"figures": figures},
        )

    def write(self, metrics: dict[str, float], step: int) -> None:
        """Append one row to the history, and pass it to the sink."""
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"step": step, **metrics}) + "\n")
        self._sink(metrics, step)


class ValidationCallback(TrainerCallback):
    """Writes validation metrics to the history: at the start, every `every` steps, and at the end.

    A checkpoint is saved whenever `metric` is better than at step 0 and at all steps since, and the trainer keeps the
    best one. A best step of 0 in the state means that none was better. In a trainer's list of callbacks, this one must
    follow the `HistoryCallback`. Every process calls `measure`, which must return the same metrics in each.
    """

    def __init__(self, measure: Measure, every: int, metric: str, history: HistoryCallback):
        self._measure, self._every, self._metric, self._history = measure, every, metric, history

    def _run(self, state: Any) -> float:
        metrics = {f"validation/{name}": value for name, value in self._measure().items()}
        if state.is_world_process_zero:
            self._history.write({**metrics, "seconds/elapsed": self._history.elapsed()}, state.global_step)
            shown = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items() if "ndcg" in name)
            logger.info("step %d  %s", state.global_step, shown)
        return metrics[f"validation/{self._metric}"]

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            state.best_metric, state.best_global_step = self._run(state), 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._every == 0 or state.global_step == state.max_steps:
            value = self._run(state)
            if state.best_metric is None or value > state.best_metric:
                state.best_metric, state.best_global_step = value, state.global_step
                control.should_save = True


def read_history(path: Path) -> list[dict[str, float]]:
    """Return the rows of a history file, oldest first; an empty list if the file does not exist.

    If a crash cut the last line short, it is dropped.
    """
    rows = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return rows
