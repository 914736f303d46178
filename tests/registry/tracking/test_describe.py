import hashlib
import json
import subprocess

from convrec.project.config.params import load_params
from convrec.project.paths import Paths
from convrec.registry import tracking
from convrec.registry.tracking.describe import changed_by_runs, shortened
from tests.small_project import ROOT, commit


def test_parameters_become_comparable_text():
    nested = {
        "sft": {"lr": 1e-06, "steps": 10, "start": None, "on": True, "name": "a b"},
        "k": [5, "é", None],
        "no": {},
    }
    assert tracking.param_texts(nested) == {
        "sft.lr": "1e-06",
        "sft.steps": "10",
        "sft.start": "null",
        "sft.on": "true",
        "sft.name": "a b",
        "k": '[5,"é",null]',
    }


def test_a_long_value_is_cut_and_stays_distinct():
    long, other = "x" * 7000, "x" * 6999 + "y"
    texts = tracking.param_texts({"a": long, "b": other, "c": "x" * 6000})
    assert len(texts["a"]) == 6000 and texts["a"].endswith(f"... md5:{hashlib.md5(long.encode()).hexdigest()}")
    assert texts["a"] != texts["b"] and texts["c"] == "x" * 6000
    assert shortened("short", 10) == "short"


def test_what_runs_write_makes_no_work_tree_dirty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tracking.git_state() == {} and changed_by_runs() == []
    files = [tmp_path / name for name in ("dvc.lock", "metrics/sft.json", "plots/sft.csv", "params.yaml")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("before")
    subprocess.run(["git", "init", "-q"], check=True)
    commit(tmp_path, "start")
    files[0].write_text("after")
    files[1].unlink()
    files[2].write_text("after")
    (tmp_path / "untracked").touch()
    assert tracking.git_state()["git_dirty"] == "false"
    assert changed_by_runs() == ["dvc.lock", "metrics/sft.json", "plots/sft.csv"]
    files[3].write_text("after")
    assert tracking.git_state()["git_dirty"] == "true"


def test_the_tags_of_a_run_tell_what_it_was_made_from(tmp_path):
    params, paths = load_params(ROOT / "params.yaml"), Paths(tmp_path)
    assert params.tags() | tracking.data_tags(paths) == {
        "profile": params.common.profile,
        "algorithm": f"rank_grpo:{params.rank_grpo.returns}",
        "base_model": params.base_model.name,
        "seed": str(params.common.seed),
    }
    paths.processed.mkdir(parents=True)
    for name in ("train", "validation", "test"):
        paths.split(name).write_text(name)
    paths.catalog.write_text("catalog")
    digests = " ".join(hashlib.md5(name.encode()).hexdigest() for name in ("train", "validation", "test"))
    tags = params.tags() | tracking.data_tags(paths)
    assert tags["data_version"] == hashlib.md5(digests.encode()).hexdigest()[:12]
    assert tags["catalog_version"] == hashlib.md5(b"catalog").hexdigest()[:12]
    paths.split("test").write_text("other")
    assert tracking.data_tags(paths)["data_version"] != tags["data_version"]


def test_params_of_every_profile_fit_mlflow():
    texts = tracking.param_texts(load_params(ROOT / "params.yaml").model_dump())
    assert all(len(name) <= 250 and len(text) <= 6000 for name, text in texts.items())
    assert json.loads(texts["common.cutoffs"]) and texts["common.profile"] == "embedded"
