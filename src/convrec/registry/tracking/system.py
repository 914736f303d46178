"""System metrics of a run: CPU, memory, disk, network and GPU, measured by MLflow's own monitors."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

logger = logging.getLogger(__name__)


@contextmanager
def system_metrics(log_metrics: Callable[[dict[str, float], int], None]) -> Iterator[None]:
    """Log `system/...` metrics in a background thread during the block, with the sample's number as the step.

    The names, units and interval are MLflow's. Its own loop would end with the first lost server. A failed measurement
    ends the samples with a warning, never the block.
    """
    stopped = threading.Event()

    def sample() -> None:
        try:
            logging.getLogger(SystemMetricsMonitor.__module__).setLevel(logging.WARNING)  # it tells of a missing GPU
            step, monitor = 0, SystemMetricsMonitor(run_id="")
            while not stopped.wait(monitor.sampling_interval):
                monitor.collect_metrics()
                log_metrics({f"system/{name}": value for name, value in monitor.aggregate_metrics().items()}, step)
                for each in monitor.monitors:
                    each.clear_metrics()
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
