"""System metrics of a run: CPU, memory, disk, network and GPU, measured by MLflow's own monitors."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlflow.environment_variables import MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL
from mlflow.system_metrics.metrics.base_metrics_monitor import BaseMetricsMonitor
from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

logger = logging.getLogger(__name__)

_SECONDS = 10.0  # between two samples; the variable MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL changes it


def _monitors() -> list[BaseMetricsMonitor]:
    found: list[BaseMetricsMonitor] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    try:
        return [*found, GPUMonitor()]
    except Exception:  # no NVIDIA library or no GPU
        return found


@contextmanager
def system_metrics(log_metrics: Callable[[dict[str, float], int], None]) -> Iterator[None]:
    """Log `system/...` metrics in a background thread during the block, with the sample's number as the step.

    The names and units are MLflow's: percentages, megabytes and watts. A failed measurement ends the samples with a
    warning, never the block.
    """
    stopped = threading.Event()

    def sample() -> None:
        try:
            step, monitors = 0, _monitors()
            while not stopped.wait(MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL.get() or _SECONDS):
                values: dict[str, float] = {}
                for monitor in monitors:
                    monitor.collect_metrics()
                    values |= monitor.aggregate_metrics()
                    monitor.clear_metrics()
                log_metrics({f"system/{name}": value for name, value in values.items()}, step)
                step += 1
        except Exception as error:
            logger.warning("system metrics are no longer recorded (%s)", error)

    thread = threading.Thread(target=sample, name="convrec system metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
