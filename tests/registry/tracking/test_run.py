import json
import os
import signal
import subprocess
import sys
import threading

from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor

from convrec.project.config.params import load_params
from convrec.project.paths import Paths
from convrec.registry import tracking
from tests.registry.tracking.server import free_port
from tests.small_project import ROOT


def test_a_stage_records_the_machine(project, make_store, monkeypatch):
    samples, collect = threading.Semaphore(0), CPUMonitor.collect_metrics

    def counted(self):
        samples.release()
        collect(self)

    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.01")
    monkeypatch.setattr(CPUMonitor, "collect_metrics", counted)
    client = make_store(project)
    with tracking.stage_run("sft", {}, {}) as run:
        for _ in range(3):
            assert samples.acquire(timeout=60)
    values = client.get_run(run.run_id).data.metrics
    assert 0 < values["system/system_memory_usage_percentage"] <= 100 and values["system/disk_available_megabytes"]


def test_a_run_has_the_tags_of_its_data_and_the_stage_data_those_that_it_made(project, make_store):
    client, paths = make_store(project), Paths()
    paths.processed.mkdir(parents=True, exist_ok=True)

    def write(content):
        for file in (*map(paths.split, ("train", "validation", "test")), paths.catalog):
            file.write_text(content)
        return tracking.data_tags(paths)

    before = write("before")
    with tracking.open_run("comparison", {}) as group, tracking.stage_run("data", {}, {}) as data:
        found = client.get_run(data.run_id).data.tags
        assert not before.keys() & found.keys()
        after = write("after")
    assert before.items() <= client.get_run(group.run_id).data.tags.items()
    assert after.items() <= client.get_run(data.run_id).data.tags.items() and before != after


def test_the_list_of_runs_has_columns_for_the_test_result_and_the_decision(project, make_store):
    client = make_store(project)
    page = tracking.runs_page(20)
    key = page.rpartition("=")[2]
    view = json.loads(client.get_experiment_by_name("convrec").tags[f"mlflow.sharedViewState.{key}"])
    model, metric, tag = json.loads(view["state"])["selectedColumns"]
    assert model.removeprefix("tags.").strip("`") in load_params(ROOT / "params.yaml").tags()
    recorded = tracking.metric_values(json.loads((ROOT / "metrics/evaluate.json").read_text()), "test/")
    assert metric.removeprefix("metrics.").strip("`") in recorded and view["name"] == key
    run = tracking.open_run("train tiny", {})
    tracking.end_pipeline_run(run, Paths(), "FINISHED", whole=False, decision="promoted")
    assert client.get_run(run.run_id).data.tags[tag.removeprefix("tags.").strip("`")] == "promoted"


def test_the_address_of_the_runs_is_printed_once_the_server_answers(tmp_path):
    programs, port, answers = tmp_path / ".venv/bin", str(free_port()), tmp_path / "answers"
    programs.mkdir(parents=True)
    server = f"touch {answers}\nmkdir health\nexec {sys.executable} -m http.server {port} --bind 127.0.0.1 > /dev/null"
    page = f'case "$2" in *runs_page*) echo PAGE;; *) exec {sys.executable} "$@";; esac'
    for name, lines in {"python": page, "mlflow": server}.items():
        (programs / name).write_text(f"#!/bin/sh\n{lines}\n")
        (programs / name).chmod(0o755)
    command = ["make", "--no-print-directory", "--file", str(ROOT / "Makefile"), "ui", "READY=", f"PORT={port}"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "start_new_session": True}
    with subprocess.Popen(command, cwd=tmp_path, **options) as process:
        try:
            assert process.stdout.readline() == f"Runs: http://127.0.0.1:{port}/#/PAGE\n" and answers.exists()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
