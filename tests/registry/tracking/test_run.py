import threading
from pathlib import Path

import pytest
from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor

from convrec.registry import tracking


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_stage_records_the_machine_and_a_failed_measurement_stops_only_that(
    project, make_store, monkeypatch, caplog, is_broken
):
    samples, collect = threading.Semaphore(0), CPUMonitor.collect_metrics

    def counted(self):
        samples.release()
        if is_broken:
            raise OSError("no /proc")
        collect(self)

    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.01")
    monkeypatch.setattr(CPUMonitor, "collect_metrics", counted)
    client = make_store(project)
    with tracking.stage_run("sft", {}, {}, Path("run.json")) as run:
        for _ in range(1 if is_broken else 3):
            assert samples.acquire(timeout=60)
        run.log_metrics({"loss": 1.0}, 1)
    values = client.get_run(run.run_id).data.metrics
    assert values.pop("loss") == 1.0
    if is_broken:
        assert not values and "system metrics are no longer recorded (no /proc)" in caplog.text
    else:
        assert 0 < values["system/system_memory_usage_percentage"] <= 100 and values["system/disk_available_megabytes"]
        history = client.get_metric_history(run.run_id, "system/cpu_utilization_percentage")
        assert len(history) > 1 and [point.step for point in history] == list(range(len(history)))
