import threading
from pathlib import Path

from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor

from convrec.registry import tracking


def test_a_stage_records_the_machine(project, make_store, monkeypatch):
    samples, collect = threading.Semaphore(0), CPUMonitor.collect_metrics

    def counted(self):
        samples.release()
        collect(self)

    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.01")
    monkeypatch.setattr(CPUMonitor, "collect_metrics", counted)
    client = make_store(project)
    with tracking.stage_run("sft", {}, {}, Path("run.json")) as run:
        for _ in range(3):
            assert samples.acquire(timeout=60)
    values = client.get_run(run.run_id).data.metrics
    assert 0 < values["system/system_memory_usage_percentage"] <= 100 and values["system/disk_available_megabytes"]
