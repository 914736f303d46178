import time
from pathlib import Path

from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor

from convrec import tracking


def _sampled(client, run_id: str) -> dict[str, float]:
    return {name: v for name, v in client.get_run(run_id).data.metrics.items() if name.startswith("system/")}


def test_a_stage_records_the_machine(project, make_store, monkeypatch):
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")
    client = make_store(project)
    with tracking.stage_run("sft", {}, {}, Path("run.json")) as run:
        time.sleep(0.5)
    values = _sampled(client, run.run_id)
    assert 0 < values["system/system_memory_usage_percentage"] <= 100
    assert values["system/disk_available_megabytes"] > 0 and "system/cpu_utilization_percentage" in values
    history = client.get_metric_history(run.run_id, "system/cpu_utilization_percentage")
    assert len(history) > 1 and [point.step for point in history] == list(range(len(history)))


def test_a_failed_measurement_stops_the_samples_and_nothing_else(project, make_store, monkeypatch, caplog):
    def broken(self):
        raise OSError("no /proc")

    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.01")
    monkeypatch.setattr(CPUMonitor, "collect_metrics", broken)
    client = make_store(project)
    with tracking.stage_run("sft", {}, {}, Path("run.json")) as run:
        time.sleep(0.2)
        run.log_metrics({"loss": 1.0}, 1)
    assert "system metrics are no longer recorded (no /proc)" in caplog.text
    assert client.get_run(run.run_id).data.metrics == {"loss": 1.0} and not _sampled(client, run.run_id)
