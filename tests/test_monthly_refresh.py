"""The walk-through of docs/monthly-refresh.md: its very commands, in order, on fewer conversations."""

import json
import re
from pathlib import Path

import mlflow
import pandas as pd
import pytest

from convrec.registry.versions import CHAMPION, MODEL_NAME
from tests.project import ROOT, SHRUNK, commit, make_project, run_in, set_params

pytestmark = pytest.mark.pipeline

BLOCKS = re.findall(r"^```bash\n(.*?)^```$", (ROOT / "docs" / "monthly-refresh.md").read_text(), re.M | re.S)
SIZES = {name: section for name, section in SHRUNK.items() if name != "data"}
SHRINK = f"""
import sys
from pathlib import Path

sys.path.insert(0, {str(ROOT)!r})
from tests.project import set_params

set_params(Path(), {SIZES!r})
set_params(Path(), {{"base_model": {{"embedded": {{"num_train_epochs": 0}}}}, "sft": {{"num_train_epochs": 0.1}}}})
"""
# The champion of November has hardly been trained, so that December's model, which has a little, is sure to beat it.
TRAINED = {
    "base_model": {
        "embedded": {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "catalog_pages": 300,
            "learning_rate": 0.004,
            "num_train_epochs": 1,
        }
    },
    "sft": {"num_train_epochs": 3, "learning_rate": 0.005, "save_steps": 1000},
}

# Few rows and small models make no gain significant.
POLICY = "lists: free\ngains: {ndcg: {min: -1.0, max_p: 1.0}}\nbaselines: {names: []}\nguard_rails: {}\n"
POLICY += "approval: none\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("month")
    (folder / "shrink.py").write_text(SHRINK)
    project = make_project(folder / "project")
    (project / "promotion.yaml").write_text(POLICY)
    commit(project, "start")
    return project


def _run(block: str, project: Path) -> str:
    """Run a block of the walk-through as it stands, but for the sizes of the sample and of the models."""
    script = block.replace("--conversations 3600", "--conversations 400")
    script = re.sub(r"^(convrec profile .*)$", r"\1\npython ../shrink.py", script, flags=re.M)
    result = run_in(project, "bash", "-euo", "pipefail", "-c", script)
    return result.stdout + result.stderr


def _state(project: Path) -> dict[str, bytes]:
    names = ["params.yaml", "dvc.lock", "data/raw/world.dvc", "data/raw/world/catalog.csv"]
    names += ["data/processed/test.parquet", "models/rank_grpo/model.safetensors", "results/evaluate.json"]
    return {name: (project / name).read_bytes() for name in names}


def _months(project: Path) -> set[str]:
    return set(pd.read_parquet(project / "data" / "processed" / "test.parquet")["date"].str.slice(0, 7))


def test_two_months_and_back(project):
    first_data, first_run, second_data, second_run, difference, back, forward = BLOCKS
    _run(first_data, project)
    output = _run(first_run, project)
    assert "there was no champion" in output and "nothing to compare the data with" in output
    assert _months(project) == {"2022-11"}
    november = _state(project)

    _run(second_data, project)
    set_params(project, TRAINED)
    output = _run(second_run, project)
    num_rows = len(pd.read_parquet(project / "data" / "processed" / "test.parquet"))
    better = rf"Decision: version 2 was promoted: better than version 1 on the same {num_rows} test rows: ndcg \+0\.\d+"
    assert re.search(better, output)
    assert "Catalog: 480 -> 480 items: 1 added, 1 removed, 1 renamed, 2 changed" in output
    assert _months(project) == {"2022-12"}
    december = _state(project)
    run_id = re.search(r"^Run: (\w+)$", output, re.M).group(1)
    mlflow.set_tracking_uri(f"sqlite:///{project}/mlruns/mlflow.db")
    client = mlflow.MlflowClient()
    assert str(client.get_model_version_by_alias(MODEL_NAME, CHAMPION).version) == "2"
    assert {a.path for a in client.list_artifacts(run_id, "changes")} == {"changes/diff.txt", "changes/diff.json"}
    assert client.get_run(run_id).data.tags["versions.md5"]

    output = _run(difference, project)
    for words in ("november -> december", "Living (2022)", "M3GAN (2022)", "Seven (1995) -> Se7en (1995)", "genres"):
        assert words in output
    changes = json.loads((project / "diff.json").read_text())
    assert changes["conversations"]["moved"], "November's rows, from test to validation"

    assert "Data and pipelines are up to date" in _run(back, project)
    assert _state(project) == november
    _run(forward, project)
    assert _state(project) == december
