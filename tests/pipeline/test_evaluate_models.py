import json
import shutil
from pathlib import Path

import mlflow
import pandas as pd
import pytest

from convrec.data.conversations import write_rows
from convrec.evaluation.comparison import SAMPLES, mean_interval
from convrec.generation import lists
from convrec.pipeline.evaluate_models import evaluation_name
from convrec.pipeline.stages import sft
from convrec.project.config.params import load_params
from convrec.project.paths import Paths
from convrec.service.translation import ModelFiles
from convrec.training.checkpoints import mark_finished, training_folder
from tests.generation.random_model import make_random_model, prompts_of
from tests.rows import make_row
from tests.small_project import make_stages, set_params


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A project with parameters and two random models."""
    folder = tmp_path_factory.mktemp("made")
    make_stages(folder, {"common": {"list_length": 6, "cutoffs": [2, 6], "device": "cpu"}})
    for seed, name in enumerate(("base", "sft")):
        make_random_model(folder / "models" / name, seed)
    return folder


@pytest.fixture
def project(made, make_store, tmp_path, monkeypatch, catalog) -> Path:
    """A copy of that, entered, with a store and data: five prompts, one of them twice."""
    project = shutil.copytree(made, tmp_path / "project")
    monkeypatch.chdir(project)
    make_store(project)
    rows = [
        make_row(f"p{i}", [("Heat", 1995)], conversation_id=str(i), date="2022-01-01", messages=messages)
        for i, messages in enumerate(prompts_of(5))
    ]
    for split in ("train", "validation", "test"):
        write_rows(pd.DataFrame([*rows, {**rows[0], "conversation_id": "again"}]), Paths().split(split))
    catalog.to_frame().to_parquet(Paths().catalog)
    return project


@pytest.fixture
def written(monkeypatch) -> list[list[str]]:
    """Lists of the catalog's lines in place of the random model's: a hit for every other prompt; the models asked."""
    asked: list[list[str]] = []

    class Written:
        def stream(self, prompts, requests):
            asked.append([])
            for index in range(len(prompts)):
                asked[-1].append(str(index))
                yield [(index, "Up (2009)\nHeat (1995)" if index % 2 == 0 else "Up (2009)\nNowhere (1900)")]

        def close(self):
            pass

    monkeypatch.setattr(lists, "load_engine", lambda *_: Written())
    return asked


def test_constrained_lists_are_catalog_items_none_twice(project, cli):
    set_params(project, {"common": {"list_length": 4, "cutoffs": [4]}})
    metrics = json.loads(cli("evaluate", "--model", "models/base", "--json").out)["metrics"]  # as they are served
    for name, value in (("in_catalog", 1), ("length", 4), ("duplicates", 0), ("seen", 0), ("format", 1)):
        assert metrics[name]["mean"] == value, name
    assert (project / "evaluations" / "models-base.test" / "lists.parquet").is_file()
    out = cli("evaluate", "--model", "models/base", "--free").out
    assert "Test split, free lists: 6 rows" in out
    assert (project / "evaluations" / "models-base.test.free" / "lists.parquet").is_file()


def test_a_folder_is_scored_with_intervals_kept_and_recorded(project, written, cli):
    result = json.loads(cli("evaluate", "--model", "models/base", "--json").out)
    assert (result["model"], result["split"], result["n_rows"], result["n_prompts"]) == ("models/base", "test", 6, 5)
    # Rows p0 (twice), p2 and p4 are hits at the second rank; p1 and p3 are none.
    assert result["metrics"]["recall_at_2"]["mean"] == pytest.approx(4 / 6)
    assert result["metrics"]["in_catalog"]["mean"] == pytest.approx((4 * 1.0 + 2 * 0.5) / 6)
    folder = Paths().evaluations / "models-base.test"
    kept = json.loads((folder / "evaluation.json").read_text())
    scores = pd.read_parquet(folder / "scores.parquet")
    interval = mean_interval(scores, "recall_at_2", SAMPLES, load_params().common.seed)
    assert kept["metrics"]["recall_at_2"] == pytest.approx(interval._asdict(), abs=1e-6)
    assert interval.low < interval.high
    responses = pd.read_parquet(folder / "lists.parquet").set_index("prompt_id")["response"]
    assert len(responses) == 5 and responses["p1"] == "Up (2009)\nNowhere (1900)"
    run = mlflow.get_run(kept["run_id"])
    assert run.data.metrics["test/recall_at_2"] == pytest.approx(4 / 6)
    assert run.data.metrics["test/recall_at_2_low"] == pytest.approx(interval.low)
    datasets = {found.dataset.name: json.loads(found.dataset.profile) for found in run.inputs.dataset_inputs}
    assert datasets["test"]["num_rows"] == 6 and run.info.status == "FINISHED"


def test_several_models_of_few_prompts_stand_side_by_side(project, written, cli):
    models = ["--model", "models/base", "--model", "models/sft"]
    out = cli("evaluate", *models, "--split", "validation", "--max-prompts", "2").out
    assert "Validation split: 2 rows, 2 prompts, 95 % intervals" in out
    assert "models/base" in out and "models/sft" in out
    (line,) = [line for line in out.splitlines() if "Recall@2" in line]
    assert line.count("0.5000 (too few persons)") == 2
    assert sorted(path.name for path in Paths().evaluations.iterdir()) == [
        "models-base.validation.first-2",
        "models-sft.validation.first-2",
    ]
    assert written[0] == written[1] and len(written[0]) == 2


def test_a_registered_version_answers_under_its_own_settings(project, written, monkeypatch, cli):
    settings = lists.ListSettings("Films, please.", 3, 8, 1.3)
    given = []
    version = ModelFiles(Path("models/sft"), Paths().catalog, settings)
    monkeypatch.setattr("convrec.pipeline.evaluate_models.download_version", lambda uri: given.append(uri) or version)
    champion = "models:/convrec-movies@champion"
    assert json.loads(cli("evaluate", "--model", champion, "--json").out)["n_rows"] == 6 and given == [champion]
    result = json.loads((Paths().evaluations / "convrec-movies-champion.test" / "evaluation.json").read_text())
    params = mlflow.get_run(result["run_id"]).data.params
    assert params["model.instruction"] == "Films, please." and params["model.repetition_penalty"] == "1.3"


@pytest.mark.parametrize(
    ("arguments", "spoil", "message"),
    [
        (["--model", "models/none"], None, "--model models/none: no such folder"),
        (["--model", "models/base"], "data/processed/test.parquet", "no data yet; run `dvc repro data` first"),
        (["--model", "models/base"], "models/base/tokenizer", "models/base: lacks tokenizer_config.json"),
        (["--model", "models/base"], "models/base/chat_template.jinja", "its tokenizer has no chat template"),
        (["--model", "models/base", "--max-prompts", "0"], None, "max_prompts"),
        (["--checkpoints", "base_model"], None, "--checkpoints base_model: give sft, rank_grpo"),
        (["--checkpoints", "sft"], None, "not made yet; run `dvc repro sft` first"),
        (["--checkpoints", "rank_grpo"], None, "no loadable checkpoints for the current parameters and data"),
        (["--checkpoints", "sft", "--free"], None, "give --model, with or without --free"),
        (["--model", "models:/convrec-movies/7"], None, "models:/convrec-movies/7: not in the registry"),
    ],
)
def test_mistakes_are_told_before_any_work(project, written, cli, arguments, spoil, message):
    if spoil:
        for path in Path(spoil).parent.glob(f"{Path(spoil).name}*"):
            path.unlink()
    ended = cli("evaluate", *arguments)
    assert ended.status == 2 and message in " ".join(ended.err.split())
    assert written == []


def test_a_hub_s_model_that_cannot_be_had_is_told(project, monkeypatch, cli):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "model nobody/nothing: could not be fetched" in cli("evaluate", "--model", "nobody/nothing").err


def test_names_of_evaluations_say_model_split_and_how_many():
    assert evaluation_name("models:/convrec-movies/3", "test", None) == "convrec-movies-3.test"
    assert evaluation_name("./Qwen/Qwen2.5-0.5B@main", "train", 9) == "Qwen-Qwen2.5-0.5B-main.train.first-9"
    assert evaluation_name("./model", "test", None, free=True) == "model.test.free"


@pytest.fixture
def training(project) -> Path:
    """The SFT's folder, whose training keeps the steps 2, 4 and 5, and chose 4; step 6 is half written."""
    for split in ("train", "validation"):
        write_rows(pd.DataFrame({"prompt_id": ["p0"]}), Paths().demonstration(split))
    key = sft.key_of(load_params(), Paths())
    folder = training_folder("sft", key)
    for step, model in ((2, "base"), (4, "sft"), (5, "base"), (6, "base")):
        made = shutil.copytree(Path("models") / model, folder / f"checkpoint-{step}")
        (made / "trainer_state.json").write_text("{}")
        (made / "config.json").write_text((made / "config.json").read_text() + "\n" * step)  # other weights, as it were
        if step < 6:
            (made / "complete").write_text("{}")
    mark_finished(folder, folder / "checkpoint-4", key)
    return folder


def test_checkpoints_are_scored_by_step_and_decode_once(training, written, cli):
    rows = json.loads(cli("evaluate", "--checkpoints", "sft", "--json", "--every", "4").out)["checkpoints"]
    assert [(row["step"], row["chosen"]) for row in rows] == [(4, True), (5, False)], "the last one, too"
    assert len(written) == 2
    out = cli("evaluate", "--checkpoints", "sft").out
    assert len(written) == 3 and "Validation split: 6 rows, 5 prompts, 95 % intervals" in out
    cells = [line.split() for line in out.splitlines() if "0.6667 [" in line]
    assert [row[:3] for row in cells] == [["sft", step, "0.6667"] for step in "245"] and cells[1][-1] == "chosen"
    file = json.loads(Path("evaluations/checkpoints.json").read_text())
    assert [(row["step"], row["chosen"]) for row in file["checkpoints"]] == [(2, False), (4, True), (5, False)]
    figures = [row["metrics"]["recall_at_2"] for row in file["checkpoints"]]
    assert all(one["low"] < one["mean"] for one in figures) and file["n_rows"] == 6
    history = mlflow.MlflowClient().get_metric_history(file["run_id"], "validation/sft/recall_at_2")
    assert [(metric.step, round(metric.value, 4)) for metric in history] == [(s, 0.6667) for s in (2, 4, 5)]
