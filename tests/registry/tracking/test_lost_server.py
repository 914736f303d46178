"""Against a real server: nothing that was recorded is lost, and nothing arrives twice."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from convrec.project.paths import Paths
from convrec.registry import tracking
from convrec.registry.tracking.journal import FOLDER, About, Delivery, Journal, now_ms, upload_left

CHILD = """
from pathlib import Path
from convrec.registry import tracking
with tracking.stage_run("sft", {"sft": {"lr": 0.5}}, {"kind": "child"}) as run:
    for step in range(40):
        run.log_metrics({"loss": 1 / (step + 1)}, step)
    run.log_text("kept", "notes/a.txt")
    print(run.run_id, flush=True)
    input()
    for step in range(40, 80):
        run.log_metrics({"loss": 1 / (step + 1)}, step)
    print("done", flush=True)
    input()
"""


def _points(client, run_id: str, name: str = "loss") -> list[tuple[int, float]]:
    """The points of a metric in the order of their recording."""
    history = client.get_metric_history(run_id, name)
    return [(metric.step, metric.value) for metric in sorted(history, key=lambda m: (m.timestamp, m.step))]


def _left(project: Path) -> list[str]:
    return [path.stem for path in (project / FOLDER).glob("*.jsonl")]


def _journal(client, project: Path) -> Journal:
    run_id = client.create_run(tracking.connect()).info.run_id
    return Journal(project / FOLDER, About(run_id, "sft", tracking.shown_uri(), now_ms()))


def test_everything_is_recorded_in_order_and_the_journal_goes(client, project):
    artifact = project / "table.csv"
    artifact.write_text("first")
    with tracking.stage_run("sft", {"sft": {"lr": 1, "deep": {"er": None}}}, {}) as run:
        for step in range(3):
            run.log_metrics({"loss": 3.0 - step, "recall@5": float("nan")}, step)
        run.log_artifact(artifact, "tables")
        artifact.write_text("rewritten in place")
        run.set_tags({"colour": "red"})
        run.set_tags({"colour": "blue"})
    found = client.get_run(run.run_id)
    assert found.info.status == "FINISHED" and found.data.tags["colour"] == "blue"
    assert found.data.params == {"sft.lr": "1", "sft.deep.er": "null"}
    assert _points(client, run.run_id) == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert len(client.get_metric_history(run.run_id, "recall_at_5")) == 3
    assert Path(client.download_artifacts(run.run_id, "tables/table.csv", str(project))).read_text() == "first"
    assert not list((project / FOLDER).iterdir())


def test_a_failed_stage_fails_its_run_and_an_interrupted_one_is_killed(client, project):
    for error, status in ((ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")):
        with pytest.raises(error), tracking.stage_run("data", {}, {}) as run:
            raise error
        assert client.get_run(run.run_id).info.status == status


def test_sending_again_after_a_crash_changes_nothing(client, project):
    """The process ended after it sent everything."""
    journal = _journal(client, project)
    run_id = journal.path.stem
    for step in range(4):
        journal.append("metrics", step=step, metrics={"loss": step / 3, "gap": "nan"})
    journal.append("params", params={"lr": "1"})
    journal.append("tags", tags={"colour": "red"})
    fields = {"name": "d", "digest": "abc", "source_type": "local", "source": "{}", "schema": "{}", "profile": "{}"}
    journal.append("dataset", context="train", dataset=fields)
    journal.append_file(b"text", "a/b.txt")
    for _ in range(2):
        delivery = Delivery(journal.path, tracking.shown_uri())
        delivery.send()
    delivery.settle()
    assert _points(client, run_id) == [(step, step / 3) for step in range(4)]
    assert len(client.get_metric_history(run_id, "gap")) == 4
    run = client.get_run(run_id)
    assert run.data.params == {"lr": "1"} and run.data.tags["colour"] == "red"
    assert [given.dataset.digest for given in run.inputs.dataset_inputs] == ["abc"] and _left(project) == []
    assert [artifact.path for artifact in client.list_artifacts(run_id, "a")] == ["a/b.txt"]


def test_the_journal_of_a_run_that_the_server_has_not_is_kept(client, project, caplog):
    """Both where it was never there, and where it was deleted."""
    tracking.connect()
    deleted = _journal(client, project)
    unknown = Journal(project / FOLDER, About("0" * 32, "", tracking.shown_uri(), 1))
    deleted.append("metrics", step=1, metrics={"loss": 0.5})
    client.delete_run(deleted.path.stem)
    for journal in (deleted, unknown):
        journal.close()
    assert all(": sent; " in text and not is_waiting for text, is_waiting in upload_left(project))
    assert caplog.text.count("MLflow refuses records of run") == 2 and _left(project) == []
    assert len(list((project / FOLDER).glob("*.refused"))) == 2


def test_runs_of_pipelines_and_groups_are_nested(client, project):
    common = {"seed": 17, "k": [5, "é", None], "rate": 1e-6, "on": True, "name": "a b"}
    pipeline = tracking.open_run("train tiny", {"profile": "tiny"}, {"common": common, "no": {}})
    with (
        tracking.open_run("compare", {}, parent=pipeline.run_id) as comparison,
        tracking.open_run("grpo", {"algorithm": "grpo"}, parent=comparison.run_id) as algorithm,
        tracking.stage_run("grpo seed 1", {}, {"stage": "rank_grpo"}, algorithm.run_id) as seed,
    ):
        pipeline.log_text({"changed": 1}, "changes/diff.json")
    chain = [client.get_run(run.run_id).data.tags[tracking.PARENT_TAG] for run in (seed, algorithm, comparison)]
    assert chain == [algorithm.run_id, comparison.run_id, pipeline.run_id]
    assert client.get_run(seed.run_id).data.tags["stage"] == "rank_grpo"
    tracking.end_pipeline_run(pipeline, Paths(), "FAILED")
    found = client.get_run(pipeline.run_id)
    assert found.info.status == "FAILED" and found.info.run_name == "train tiny"
    texts = {"seed": "17", "k": '[5,"é",null]', "rate": "1e-06", "on": "true", "name": "a b"}
    assert found.data.params == {f"common.{name}": text for name, text in texts.items()}
    assert [artifact.path for artifact in client.list_artifacts(pipeline.run_id)] == ["changes"]


def test_no_secret_reaches_server_journal_or_files(server, client, project, monkeypatch, caplog):
    secrets = {"OPENAI_API_KEY": 'sk-"quoted"-é1', "MY_SECRET": "c0nfidential", "HF_TOKEN": "hf_abcdefgh"}
    secrets |= {"MLFLOW_TRACKING_PASSWORD": "p4ss/word"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "somebody")
    params = {"teacher": {"key": secrets["OPENAI_API_KEY"], "url": "https://me:hidden-word@host/v1"}}
    with tracking.stage_run("sft", params, {"note": f"a {secrets['MY_SECRET']} b"}) as run:
        run.set_tags({"later": secrets["HF_TOKEN"]})
        run.log_text({"key": secrets["HF_TOKEN"]}, "t.json")
        written = b"".join(path.read_bytes() for path in (project / "runs").rglob("*") if path.is_file())
    found = client.get_run(run.run_id)
    assert found.data.params["teacher.url"] == "https://***@host/v1" and found.data.tags["note"] == "a *** b"
    stored = b"".join(path.read_bytes() for path in server.folder.rglob("*") if path.is_file())
    for text in (*secrets.values(), "p4ss", "somebody", "hidden-word", "quoted"):
        assert text.encode() not in written + stored and text not in caplog.text


@pytest.mark.slow
def test_a_killed_server_loses_nothing_of_any_run(server, client, project, cli):
    """Three runs: one goes on until the server is back, one ends without it, and one's process is killed."""
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    killed = child.stdout.readline().strip()
    with tracking.stage_run("rank_grpo", {}, {}) as lives:
        with tracking.stage_run("evaluate", {}, {}) as ended:
            for step in range(200):
                if step == 100:
                    server.kill()
                lives.log_metrics({"loss": float(step)}, step)
            ended.log_metrics({"loss": 1.0}, 1)
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == "done\n"
        assert sorted(_left(project)) == sorted([killed, lives.run_id, ended.run_id])
        away = cli("tracking", "sync")
        assert away.status == 75 and "convrec tracking sync: MLFLOW_TRACKING_URI" in away.err
        server.start()
        status, output, _ = cli("tracking", "sync")
        assert status == 0 and killed not in output and lives.run_id not in output
        assert f"evaluate ({ended.run_id}): sent" in output
        lives.log_metrics({"loss": 200.0}, 200)
    assert _points(client, lives.run_id) == [(step, float(step)) for step in range(201)]
    assert [client.get_run(run.run_id).info.status for run in (lives, ended)] == ["FINISHED", "FINISHED"]
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    with (project / FOLDER / f"{killed}.jsonl").open("ab") as stream:
        stream.write(b'{"kind":"metrics","at":1,"metr')  # as a kill may cut it short
    command = [sys.executable, "-m", "convrec.cli", "tracking", "sync"]
    sync = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert sync.returncode == 0 and f"sft ({killed}): sent" in sync.stdout
    assert _points(client, killed) == [(step, 1 / (step + 1)) for step in range(80)]
    info = client.get_run(killed).info
    assert info.status == "KILLED" and info.start_time < info.end_time
    assert [artifact.path for artifact in client.list_artifacts(killed, "notes")] == ["notes/a.txt"]
    assert cli("tracking", "sync")[:2] == (0, "Nothing to upload.\n") and _left(project) == []


def test_a_new_run_sends_what_an_earlier_process_left(client, project):
    journal = _journal(client, project)
    journal.append("metrics", step=1, metrics={"loss": 0.5})
    journal.close()
    with tracking.stage_run("sft", {}, {}):
        for thread in threading.enumerate():
            if thread.name == "convrec tracking upload":
                thread.join(20)
    run_id = journal.path.stem
    assert _points(client, run_id) == [(1, 0.5)] and client.get_run(run_id).info.status == "KILLED"
    assert _left(project) == []
