"""The real pipeline with the real params.yaml, shrunk: flow, graph, record, registry, and what bad input does.

The tests that only look at what the first run made are fast ones; those that run more are slow.
"""

import json
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import mlflow
import nbformat
import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from mlflow.exceptions import MlflowException
from nbclient import NotebookClient
from safetensors.torch import load

from convrec.evaluation.systems import BASELINES
from convrec.pipeline.commands.stage import STAGES
from convrec.pipeline.evaluate_models import evaluate_checkpoints, evaluate_models
from convrec.project.config.params import load_params
from convrec.project.errors import EXIT_UNAVAILABLE
from convrec.project.paths import Paths
from convrec.registry.measure import compare_versions
from convrec.registry.policy import load_policy
from convrec.registry.recommenders import open_recommender
from convrec.registry.tracking import flatten
from convrec.registry.versions import CHALLENGER, CHAMPION, download_version, model_name
from convrec.service.reasons import EXAMPLES
from convrec.training.callbacks import read_history
from tests.registry.tracking.server import free_port
from tests.small_project import NO_BASELINES, ROOT, SHRUNK, commit, make_project, own_environment, run_in, set_params

NAMES = "AWS_SECRET_ACCESS_KEY HF_TOKEN MLFLOW_TRACKING_PASSWORD OPENAI_API_KEY PREFECT_API_AUTH_STRING"
SECRETS = {name: f"{name.lower()}-4f9c27d1" for name in NAMES.split()}


@pytest.fixture(scope="module")
def project(tmp_path_factory, empty_store) -> Path:
    """A clone of the project with small parameters, committed, and an empty store of runs."""
    folder = make_project(tmp_path_factory.mktemp("project"))
    (folder / "mlruns").mkdir()
    shutil.copy(empty_store, folder / "mlruns")
    set_params(folder, SHRUNK)
    set_params(folder, NO_BASELINES, "promotion.yaml")
    commit(folder, "start")
    return folder


@pytest.fixture(scope="module")
def trained(project) -> subprocess.CompletedProcess:
    """The first run of the flow, without any server, with secrets in its environment."""
    secrets = [f"{name}={value}" for name, value in SECRETS.items()]
    return run_in(project, "env", *secrets, sys.executable, "-m", "flows.train")


@pytest.fixture
def client(project, trained):
    mlflow.set_tracking_uri(f"sqlite:///{project}/mlruns/mlflow.db")
    return mlflow.MlflowClient()


def test_the_flow_prints_the_table_the_model_and_the_report(project, trained):
    for words in ("popularity", "zero-shot", "SFT", "Rank-GRPO", "oracle", "champion", "runs/report.html", "make ui"):
        assert words in trained.stdout
    assert f"\n  convrec recommend '{EXAMPLES[0].text}'   " in trained.stdout, "a line to paste"
    metrics = json.loads((project / "results" / "evaluate.json").read_text())
    assert metrics["oracle"]["ndcg_at_6"] > metrics["popularity"]["ndcg_at_6"] > 0
    baselines = set(BASELINES) - {"sasrec"}  # the embedded world's histories have no order
    assert set(metrics["baselines"]) == baselines < set(metrics)
    assert {f"rank_grpo_over_{name}" for name in baselines} < set(metrics["paired_ndcg_at_6"])


def test_the_report_of_the_run_has_the_decision_on_its_first_row(project, trained, client):
    decided = (project / "runs" / "report.html").read_text()
    first = '<dl class="card">\n<div id="decision"><dt>Decision at the end of the run</dt><dd>Promoted<small>'
    assert first in decided and " was promoted: there was no champion." in decided
    run_in(project, "dvc", "status", "--quiet", "report")  # fails if an output of the graph has changed
    experiment = client.get_experiment_by_name("convrec").experiment_id
    run = client.search_runs([experiment], "tags.decision = 'promoted'")[0]
    recorded = mlflow.artifacts.download_artifacts(f"runs:/{run.info.run_id}/report.html")
    assert Path(recorded).read_text() == decided


def test_no_secret_is_written_or_told(project, trained):
    """Not in logs, tables and their WAL, parameters, artifacts, caches or checkpoints."""
    files = {str(path.relative_to(project)): path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert {name.split("/")[0] for name in files} >= {"checkpoints", "mlruns", ".prefect", ".dvc", "models", "runs"}
    files["output"] = (trained.stdout + trained.stderr).encode()
    for secret in SECRETS.values():
        assert not [name for name, content in files.items() if secret.encode() in content], secret


@pytest.mark.slow
def test_the_notebook_runs_in_a_project_with_a_champion(project, trained):
    notebook = nbformat.read(ROOT / "examples" / "quickstart.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(project / "profiles")}}).execute()
    shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert "\n   5  " in shown[0]["text/plain"] and "image/png" in shown[-1]


def test_one_parent_run_with_a_child_for_each_stage(client):
    experiment = client.get_experiment_by_name("convrec")
    runs = client.search_runs([experiment.experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 1
    names = [run.info.run_name for run in runs if run.data.tags.get("mlflow.parentRunId") == parents[0].info.run_id]
    assert sorted(names) == sorted([*STAGES, "register"])
    assert all(run.info.status == "FINISHED" for run in runs)
    assert {i.dataset.name for i in parents[0].inputs.dataset_inputs} >= {"catalog", "train", "validation", "test"}
    assert len(parents[0].outputs.model_outputs) == 1
    description = parents[0].data.tags["mlflow.note.content"]
    assert description.startswith("- **Promoted.** ") and "| neighbours |" in description.lower()
    assert "- Time of the stages: **" in description and " GiB of memory" in description
    assert all(f"| {stage} | " in description for stage in STAGES)
    numbers = [name for name in parents[0].data.metrics if name.startswith("test/")]
    assert "test/ndcg_at_6/rank_grpo" in numbers and len(numbers) <= 20


def test_curves_are_recorded_for_every_rank(project, client):
    run_id = json.loads((project / "runs" / "rank_grpo.json").read_text())["run_id"]
    for rank in range(1, 7):
        assert len(client.get_metric_history(run_id, f"reward/rank_{rank:02d}")) == 4
    steps = [metric.step for metric in client.get_metric_history(run_id, "validation/ndcg_at_6")]
    assert steps == [0, 2, 4]
    run = client.get_run(run_id)
    assert run.data.params["rank_grpo.max_steps"] == "4"
    for tag in ("profile", "algorithm", "base_model", "seed", "data_version", "catalog_version", "git_dirty", "stage"):
        assert run.data.tags[tag]
    assert run.data.tags["mlflow.source.git.commit"]
    assert len([tag for tag in run.data.tags if not tag.startswith("mlflow.")]) <= 10
    (train,) = (found.dataset for found in run.inputs.dataset_inputs if found.dataset.name == "train")
    assert train.digest and json.loads(train.profile)["dates"].startswith("2022-01")


def test_no_prompt_is_cut(project, client):
    for stage in ("sft", "rank_grpo", "evaluate"):
        run_id = json.loads((project / "runs" / f"{stage}.json").read_text())["run_id"]
        assert client.get_run(run_id).data.metrics["prompts/truncated_share"] == 0
    settings = json.loads((project / "models" / "rank_grpo" / "generation_config.json").read_text())
    assert settings["repetition_penalty"] == 1.5, "the one that it was trained with"


def test_the_champion_answers_conversations(client):
    model = client.get_registered_model(model_name())
    assert set(model.aliases) == {CHALLENGER, CHAMPION}
    recommender = mlflow.pyfunc.load_model(f"models:/{model_name()}@{CHAMPION}")
    questions = ["User: I loved Heat", "User: a space film\nAssistant: sure\nUser: from the 80s"]
    questions.append("User: a heist film\nAssistant: sure\n" * 10_000 + questions[1])
    answers = recommender.predict(questions, params={"n": 6, "deny": ["Alien"]})
    assert list(answers.columns) == ["query", "rank", "title", "year"]
    assert answers["query"].tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert answers["rank"].tolist() == [1, 2, 3, 4, 5, 6] * 3
    assert not answers.duplicated(["query", "title", "year"]).any()
    assert "Alien" not in set(answers["title"]) and "Heat" not in set(answers["title"][:6])
    assert len(recommender.predict(questions[0])) == 20
    assert len(recommender.predict(questions[0], params={"n": 2, "allow": ["Dune", "Alien", "Heat"]})) == 2
    messages = [{"role": "user", "content": "I loved Heat"}]
    frames = [pd.DataFrame({"conversation": questions[:1]}), pd.DataFrame({"messages": [messages]})]
    for same in (questions[0], messages, [messages], np.array(questions[:1]), *frames):
        first = recommender.predict(same, params={"n": 6, "deny": ["Alien"]})
        pd.testing.assert_frame_equal(first, answers[:6], rtol=1e-4)
    with pytest.raises(MlflowException, match="one of the columns"):
        recommender.predict(pd.DataFrame({"text": ["a film"]}))


def test_the_packaged_model_is_made_from_a_finished_run(project, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(project)
    runpy.run_path(str(ROOT / "docs" / "make_demo_model.py"))["write"](tmp_path)
    assert len(open_recommender(str(tmp_path)).recommend(EXAMPLES[1].text, n=3)) == 3
    assert "of the tested model" in (tmp_path / "model_card.md").read_text()
    weights, before = (folder / "model.safetensors" for folder in (tmp_path / "model", Paths().model("rank_grpo")))
    assert {weight.dtype for weight in load(weights.read_bytes()).values()} == {torch.float16}
    assert weights.stat().st_size < 0.6 * before.stat().st_size


def test_promotion_measures_a_version_as_the_stage_does(project, client, monkeypatch):
    monkeypatch.chdir(project)
    params, paths = load_params(), Paths()
    champion = client.get_model_version_by_alias(model_name(), CHAMPION)
    model = download_version(f"models:/{model_name()}/{champion.version}")
    one = "1", model
    found = compare_versions(params, paths, load_policy(params.common.cutoffs), [one, one])
    stage = json.loads(paths.results("evaluate").read_text())["rank_grpo"]
    for metric in ("ndcg_at_6", "in_catalog", "coverage"):
        assert found.challenger.means[metric] == pytest.approx(stage[metric], abs=1e-6)
    assert champion.tags["test.ndcg_at_6"].startswith(f"{stage['ndcg_at_6']:.4f} [")
    assert found.gains["ndcg"][:3] == (0, 0, 0) and found.gains["ndcg"].p == 1
    assert found.slices and all(change.drop == 0 for change in found.slices)


def test_the_champion_is_evaluated_as_in_its_stage_and_the_checkpoints_by_step(project, trained, monkeypatch):
    monkeypatch.chdir(project)
    params, paths = load_params(), Paths()
    (found,) = evaluate_models(params, paths, [f"models:/{model_name()}@{CHAMPION}"], "test")
    stage = json.loads(paths.results("evaluate").read_text())
    for metric in ("ndcg_at_6", "recall_at_2", "in_catalog"):
        assert found["metrics"][metric]["mean"] == pytest.approx(stage["rank_grpo"][metric], abs=1e-6)
        interval = stage["rank_grpo"]["intervals"][metric]
        assert found["metrics"][metric]["low"] == pytest.approx(interval["low"], abs=1e-6)
    assert found["n_rows"] == stage["n_rows"]
    rows = evaluate_checkpoints(params, paths, ["sft", "rank_grpo"], None, "validation")["checkpoints"]
    aligned = {row["step"]: row["metrics"] for row in rows if row["stage"] == "rank_grpo"}
    assert set(aligned) == {2, 4}
    assert all(metrics["in_catalog"]["mean"] == 1 for metrics in aligned.values()), "constrained, as its rollouts are"
    chosen = {row["stage"]: row["step"] for row in rows if row["chosen"]}
    assert chosen.get("rank_grpo", 0) == json.loads(paths.metrics("rank_grpo").read_text())["chosen_step"]
    (file,) = (project / "checkpoints" / "sft").glob("*/history.jsonl")
    history = [row for row in map(json.loads, file.open()) if row["step"] and "validation/ndcg_at_6" in row]
    scores = {row["step"]: row["validation/ndcg_at_6"] for row in history}
    assert chosen["sft"] == max(scores, key=lambda step: scores[step]), "the best epoch"


@pytest.mark.slow
def test_a_second_run_does_nothing_and_dvc_shows_metrics_and_plots(project, trained):
    before = sorted((project / "runs").iterdir()), (project / "runs" / "sft.json").read_text()
    result = run_in(project, sys.executable, "-m", "flows.train")
    assert "Nothing to do" in result.stdout and "champion already" in result.stdout
    assert (sorted((project / "runs").iterdir()), (project / "runs" / "sft.json").read_text()) == before
    assert run_in(project, "dvc", "repro").stdout.count("didn't change") == len(STAGES)
    shown = json.loads(run_in(project, "dvc", "metrics", "show", "--json").stdout)
    assert "metrics/evaluate.json" in json.dumps(shown)
    values = [value for path in (project / "metrics").glob("*.json") for value in flatten(json.loads(path.read_text()))]
    assert len(values) <= 55, "few enough to be read side by side"
    page = run_in(project, "dvc", "plots", "show", "--out", "dvc_plots")
    assert (project / "dvc_plots" / "index.html").is_file(), page.stdout


@pytest.mark.slow
def test_an_interrupted_training_resumes(project, trained):
    folder = next((project / "checkpoints" / "rank_grpo").iterdir())
    before = (project / "models" / "rank_grpo" / "model.safetensors").read_bytes()
    shutil.rmtree(folder / "checkpoint-4")
    (folder / "finished.json").unlink()  # as if it had been killed after step 2
    result = run_in(project, "dvc", "repro", "--force", "--single-item", "rank_grpo")
    assert "resuming at step 2 of 4" in result.stdout + result.stderr
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [row["step"] for row in history if "reward" in row] == [1, 2, 3, 4]
    assert (project / "models" / "rank_grpo" / "model.safetensors").read_bytes() == before
    (folder / "finished.json").unlink()  # as if it had been killed while the model was written
    result = run_in(project, "dvc", "repro", "--force", "--single-item", "rank_grpo")
    assert "step 4/4" not in result.stdout + result.stderr, "nothing is trained again"
    assert (project / "models" / "rank_grpo" / "model.safetensors").read_bytes() == before
    code = project / "src" / "convrec" / "training" / "rl" / "loss.py"
    code.write_text(code.read_text() + "# a comment\n")
    result = run_in(project, "dvc", "repro", "rank_grpo")
    assert f"the finished training in {folder.relative_to(project)} is used" in result.stdout + result.stderr
    assert (project / "models" / "rank_grpo" / "model.safetensors").read_bytes() == before


@pytest.fixture
def scratch(project, trained, tmp_path, monkeypatch) -> Path:
    """A copy of the trained project, entered, to change at will."""
    folder = tmp_path / "scratch"
    shutil.copytree(project, folder, ignore=shutil.ignore_patterns(".git", "checkpoints"), symlinks=True)
    monkeypatch.chdir(folder)
    return folder


def _run_names(project: Path) -> Counter[str | None]:
    """Return how many MLflow runs have each name."""
    runs = mlflow.MlflowClient(f"sqlite:///{project}/mlruns/mlflow.db").search_runs(["1"])
    return Counter(run.info.run_name for run in runs)


def _start_nodes(project: Path, stage: str) -> list[subprocess.Popen]:
    """Start a stage on two nodes, both this machine, as a scheduler does; each prints into its pipe."""
    own = {**own_environment(), "OMP_NUM_THREADS": "1", "SLURM_STEP_NUM_NODES": "2"}
    own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [ROOT / "examples" / "node.sh", stage]
    return [subprocess.Popen(command, cwd=project, env={**own, "SLURM_PROCID": rank}, **streams) for rank in "01"]


def _end_nodes(nodes: list[subprocess.Popen]) -> list[tuple[int, str]]:
    """Wait for both; return their exit statuses and the output that was not read yet."""
    outputs = [node.communicate(timeout=300)[0] for node in nodes]
    return [(node.returncode, output) for node, output in zip(nodes, outputs, strict=True)]


def _signal_at_step(nodes: list[subprocess.Popen], step: int, number: signal.Signals) -> None:
    """Send a signal to the training process of the second node once the first one prints this step or a later one."""
    for line in nodes[0].stdout or ():
        told = re.search(r"step (\d+)/", line)
        if told and int(told[1]) >= step:
            family = psutil.Process(nodes[1].pid).children(recursive=True)
            (victim,) = [process for process in family if "RANK" in process.environ()]
            victim.send_signal(number)
            return


@pytest.mark.slow
def test_two_processes_on_one_node_or_two_train_as_one_does(scratch):
    shutil.copytree(ROOT / "configs", scratch / "configs")
    run_in(scratch, "git", "init", "--quiet")
    before = _run_names(scratch)
    launch = {"launch": "configs/accelerate/ddp.yaml", "num_processes": 2}
    model = scratch / "models" / "sft" / "model.safetensors"
    # Step 14 is in the first epoch, whose last batch is not full: several processes fill it with rows from the start.
    set_params(scratch, {"sft": {"checkpoint_step": 14, "per_device_train_batch_size": 4}})
    run_in(scratch, "convrec", "run", "sft")
    by_one = load(model.read_bytes())

    def is_as_by_one() -> None:
        for name, weights in load(model.read_bytes()).items():
            torch.testing.assert_close(weights, by_one[name], rtol=1e-4, atol=1e-5, msg=name)

    set_params(scratch, {"sft": {**launch, "per_device_train_batch_size": 2}})
    assert "the finished training" in run_in(scratch, "convrec", "run", "sft").stderr
    (folder,) = (scratch / "checkpoints" / "sft").iterdir()
    shutil.rmtree(folder)
    run_in(scratch, "convrec", "run", "sft")
    by_two = model.read_bytes()
    is_as_by_one()
    shutil.rmtree(folder)
    nodes = _start_nodes(scratch, "sft")
    _signal_at_step(nodes, 3, signal.SIGKILL)
    (first, words), (second, _) = _end_nodes(nodes)
    assert (first, second) == (EXIT_UNAVAILABLE, 128 + signal.SIGKILL)
    assert "another process of this training has ended" in words and "start again" in words
    (first, words), (second, others) = _end_nodes(_start_nodes(scratch, "sft"))
    assert (first, second) == (0, 0) and "resuming at step" in words
    assert model.read_bytes() == by_two
    assert " step " not in others, "only the first process tells"
    status = json.loads(run_in(scratch, "dvc", "status", "--json", "sft").stdout)
    assert status == {}, "node 0 ran it under DVC"
    assert (_run_names(scratch) - before)["sft"] == 5, "one for each start, none of the second node"
    (folder / "finished.json").unlink()
    for step in (12, 14):
        shutil.rmtree(folder / f"checkpoint-{step}")
    set_params(scratch, {"sft": {"launch": None, "per_device_train_batch_size": 4}})
    assert "resuming at step 10 of" in run_in(scratch, "convrec", "run", "sft").stderr
    is_as_by_one()


@pytest.mark.slow
def test_adapters_from_a_registered_version_with_constrained_rollouts(scratch):
    changes = {
        "start": f"models:/{model_name()}@{CHAMPION}",
        "lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0},
        "constrained": True,
        "max_steps": 2,
    }
    set_params(scratch, {"rank_grpo": changes})
    result = run_in(scratch, "convrec", "run", "rank_grpo")
    assert f"starting from the weights of models:/{model_name()}@{CHAMPION}," in result.stderr
    folder = next((scratch / "checkpoints" / "rank_grpo").iterdir())
    assert (folder / "checkpoint-2" / "adapter_config.json").is_file()
    assert (scratch / "models" / "rank_grpo" / "model.safetensors").is_file()
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    (first,) = (row for row in history if row["step"] == 1 and "lists/in_catalog" in row)
    assert (first["lists/items"], first["lists/in_catalog"], first["lists/duplicates"]) == (6, 1, 0)
    assert {row["validation/in_catalog"] for row in history if "validation/in_catalog" in row} == {1}


@pytest.mark.slow
def test_a_comparison_is_made_once(scratch, cli, caplog):
    set_params(scratch, {"rank_grpo": {"constrained": True}})
    algorithms = ["rank_grpo:exp_inf", "grpo", "dpo"]
    command = ["compare", "--algorithms", ",".join(algorithms), "--seeds", "2", "--steps", "2"]
    status, out, _ = cli(*command)
    assert status == 0 and "Validation NDCG@6, constrained lists" in out and "rank_grpo:exp_inf" in out
    result = json.loads((scratch / "comparison" / "compare.json").read_text())
    assert list(result["algorithms"]) == ["sft", *algorithms] and result["constrained"]
    assert "over_grpo" in result["algorithms"]["rank_grpo:exp_inf"]
    store = mlflow.MlflowClient()
    runs = store.search_runs([store.get_experiment_by_name("convrec").experiment_id], "tags.profile = 'embedded'")
    names = {run.info.run_id: run.info.run_name for run in runs}
    parents = {run.info.run_name: names.get(run.data.tags.get("mlflow.parentRunId")) for run in runs}
    assert parents["grpo"] == parents["rank_grpo:exp_inf"] == "compare" and parents["compare"] is None
    assert [name for name, parent in parents.items() if parent == "grpo" and name.startswith("grpo seed ")]
    key, files = "validation/ndcg_at_6", (scratch / "checkpoints" / "compare").glob("*/history.jsonl")
    curves = [{row["step"]: row[key] for row in read_history(file) if key in row} for file in files]
    assert [[*curve] for curve in curves] == [[0, 2]] * (2 * len(algorithms))
    assert len({curve[0] for curve in curves}) == 1, "all are measured as the model that they start from"
    assert cli(*command).status == 0 and caplog.text.count("already finished") == 6
    assert json.loads((scratch / "comparison" / "compare.json").read_text()) == result


@pytest.mark.slow
def test_preflight_runs_the_most_expensive_steps_on_throw_away_weights(scratch, cli):
    models = {file: file.stat().st_mtime_ns for file in (scratch / "models").rglob("*.safetensors")}
    status, out, err = cli("preflight")
    assert status == 0, err
    rows = {line.split()[0]: line for line in out.splitlines() if "GiB" in line and line.startswith(" ")}
    assert list(rows) == ["base_model", "evidence", "sft", "guidance", "rank_grpo", "evaluate"]
    for stage in ("sft", "rank_grpo"):
        assert re.search(r"\d\.\d\d GiB +\d+\.\d\d +\d+\.\d min", rows[stage])
    assert {file: file.stat().st_mtime_ns for file in models} == models
    assert not list(scratch.rglob("preflight-*"))
    status, out, err = cli("preflight", "--memory", "0.05")
    assert status == 2 and "base_model: out of memory" in out and "memory does not suffice" in err
    assert cli("preflight", "--memory", "-1").status == 2


@pytest.mark.slow
def test_an_experiment_changes_a_parameter_and_git_brings_back_what_was_made(project, trained):
    commit(project, "trained")
    model = project / "models" / "sft" / "model.safetensors"
    before = model.read_bytes()
    run_in(project, "dvc", "exp", "run", "-S", "sft.learning_rate=0.002", "sft")
    difference = json.loads(run_in(project, "dvc", "metrics", "diff", "--json").stdout)
    assert "metrics/sft.json" in difference and model.read_bytes() != before
    run_in(project, "git", "checkout", "--quiet", "--", ".")
    run_in(project, "dvc", "checkout", "--quiet")
    assert model.read_bytes() == before


@pytest.mark.slow
def test_a_flow_does_not_retry_bad_input(scratch):
    run_in(scratch, "git", "init", "--quiet")
    set_params(scratch, {"data": {"test_period": "2023-05"}})
    result = run_in(scratch, sys.executable, "-m", "flows.train", check=False)
    assert result.returncode == 2
    assert "the test split is empty" in result.stderr and result.stdout == ""
    assert not any(word in result.stderr for word in ("Retry", "Traceback"))
