"""Code that lies beside a model's weights runs where a parameter says so, and nowhere else."""

import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

import mlflow
import pandas as pd
import pytest
from transformers import dynamic_module_utils

from convrec.classical.embedding import SentenceEmbedder
from convrec.classical.guidance import Guidance
from convrec.data.conversations import read_rows, write_rows
from convrec.evaluation.baselines import kept_baselines
from convrec.generation.engine import EngineOptions, TransformersEngine
from convrec.generation.model_folders import find_model
from convrec.generation.pretrained import load_config, load_model, load_tokenizer
from convrec.pipeline.memory import with_settings
from convrec.pipeline.stages import base_model, evidence, guidance
from convrec.project.config.params import load_params
from convrec.project.errors import InputError
from convrec.project.graph import stage_params
from convrec.project.paths import Paths
from convrec.project.results import read_json
from convrec.registry.recommenders import open_recommender
from convrec.service.recommender import Recommender
from convrec.service.translation import ModelFiles
from tests.registry.registered import make_workspace
from tests.rows import make_row
from tests.security.hostile import save_model_with_code, save_tokenizer_with_code
from tests.service.recommending import CATALOG, SETTINGS, TITLES, save_model
from tests.small_project import ROOT

PARAMETER = "set base_model.trust_remote_code to true"


@pytest.fixture
def marker(tmp_path, monkeypatch) -> Path:
    """The file that foreign code makes; transformers copies such code to a folder of this test's own."""
    modules = tmp_path / "modules"
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(modules))
    monkeypatch.syspath_prepend(str(modules))
    yield tmp_path / "ran"
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "load",
    [
        load_model,
        load_config,
        lambda folder: find_model(str(folder), "--model"),
        lambda folder: TransformersEngine.load(
            str(folder), None, EngineOptions("transformers", "cpu", 1, 1, 0.5), 8, 1.0
        ),
        lambda folder: Recommender.load(ModelFiles(folder, folder.with_name("catalog.parquet"), SETTINGS)),
    ],
    ids=["model", "configuration", "--model", "engine", "recommender"],
)
def test_a_model_of_foreign_code_is_refused(tmp_path, marker, load):
    folder = save_model_with_code(tmp_path / "model", marker)
    CATALOG.to_frame().to_parquet(tmp_path / "catalog.parquet")
    with pytest.raises(InputError, match=f"model: it needs the code in its repository.*{PARAMETER}"):
        load(folder)
    assert not marker.exists()


def test_a_tokenizer_loads_without_the_code_that_lies_beside_it(tmp_path, marker):
    folder = save_tokenizer_with_code(tmp_path / "model", marker)
    load_tokenizer(folder)
    find_model(str(folder), "--model")
    assert not marker.exists()
    load_tokenizer(folder, trust_remote_code=True)
    assert marker.exists()


def test_the_stage_takes_a_model_of_foreign_code_where_the_parameter_says_so(here, marker, monkeypatch):
    folder = save_model_with_code(here / "model", marker)
    monkeypatch.setattr(base_model, "item_tokens", lambda _: {})  # whose rows need the catalog
    settings = {"base_model.name": str(folder), "common.item_tokens": False}
    params = with_settings(load_params(ROOT / "params.yaml"), settings)
    assert not params.base_model.trust_remote_code
    with pytest.raises(InputError, match=PARAMETER):
        base_model._copy_pretrained(params, Paths(), CATALOG)
    assert not marker.exists() and not Path("models").exists()
    base_model._copy_pretrained(with_settings(params, {"base_model.trust_remote_code": True}), Paths(), CATALOG)
    assert marker.exists()
    marker.unlink()
    with pytest.raises(InputError, match=PARAMETER):
        load_model(Paths().model("base"))
    assert not marker.exists()
    assert type(load_model(Paths().model("base"), trust_remote_code=True)).__name__ == "Model"


def _save_embedder(folder: Path, marker: Path) -> Path:
    """Write a sentence-transformers model whose only module is in a file beside it."""
    save_model(folder)
    (folder / "code_of_its_own.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\nThing = dict\n")
    module = {"idx": 0, "name": "0", "path": "", "type": "code_of_its_own.Thing"}
    (folder / "modules.json").write_text(json.dumps([module]))
    return folder


def test_an_embedder_of_foreign_code_is_refused(tmp_path, marker):
    folder = _save_embedder(tmp_path / "embedder", marker)
    with pytest.raises(InputError, match=r"set demonstrations\.embedder\.trust_remote_code to true"):
        SentenceEmbedder(str(folder))
    assert not marker.exists()


def test_the_code_of_a_registered_version_runs_under_mlflow_alone(tmp_path, marker):
    model, code, version = tmp_path / "rank_grpo", tmp_path / "code.py", tmp_path / "version"
    save_model(model)
    CATALOG.to_frame().to_parquet(tmp_path / "catalog.parquet")
    code.write_text(
        f"import pathlib\nimport mlflow\npathlib.Path({str(marker)!r}).touch()\n"
        "class Answer(mlflow.pyfunc.PythonModel):\n"
        "    def predict(self, context, model_input, params=None):\n        return model_input\n"
        "mlflow.models.set_model(Answer())\n"
    )
    mlflow.pyfunc.save_model(
        version,
        python_model=str(code),
        artifacts={"model": str(model), "catalog": str(tmp_path / "catalog.parquet")},
        model_config={"instruction": None, "list_length": 3, "max_completion_length": 64},
        pip_requirements=[],
    )
    marker.unlink(missing_ok=True)
    assert not list(version.rglob("*.pkl"))
    answer = open_recommender(str(version)).recommend(["a film with heists"], n=3)
    assert len(answer[0]) == 3 and not marker.exists()
    mlflow.pyfunc.load_model(str(version))
    assert marker.exists(), "MLflow runs a version's code: that is what a version is to it"


def test_evidence_runs_no_code_of_an_embedder_so_that_its_version_can_be_served(tmp_path, marker, monkeypatch):
    """The baseline `neighbours`, which is never registered, has the embedder of the parameters."""
    folder = _save_embedder(tmp_path / "embedder", marker)
    monkeypatch.chdir(make_workspace(tmp_path))
    rows = [make_row(f"p{number}", [(TITLES[number % 5], 1975 + number % 5 * 3)]) for number in range(60)]
    write_rows(pd.DataFrame(rows), Paths().split("train"))
    save_model(Paths().model("sft"))
    settings = {"demonstrations.embedder.name": str(folder), "demonstrations.embedder.trust_remote_code": True}
    params = with_settings(load_params(), settings)
    evidence.run(stage_params(params, "evidence"), Paths(), MagicMock())
    guidance.run(stage_params(params, "guidance"), Paths(), MagicMock())
    assert read_json(Paths().guidance / "guidance.json")["embedder"]["name"] == "tfidf" and not marker.exists()
    guidance.run(stage_params(with_settings(params, {"guidance.fit_prompts": 0}), "guidance"), Paths(), MagicMock())
    assert Guidance.load(Paths().guidance, CATALOG) is None
    prompts, options = read_rows(Paths().split("test")), params.baseline_options()
    assert kept_baselines(["fusion"], Paths(), prompts, CATALOG, **options)["fusion"].lists and not marker.exists()
    with pytest.raises(InputError, match="'dict' has no attribute 'load'"):  # the class `Thing`
        kept_baselines(["neighbours"], Paths(), prompts, CATALOG, **options)
    assert marker.exists()
