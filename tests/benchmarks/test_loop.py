"""The benchmark of the loop: what its refresh learns from."""

from datetime import date
from types import SimpleNamespace

from benchmarks import loop
from convrec.project.config.params import load_params
from convrec.project.config.profiles import apply_profile
from tests.small_project import ROOT


def test_a_refresh_keeps_the_world_of_the_users(tmp_path, monkeypatch):
    """With other months of synthetic data, users and model would be of two worlds, and the model would know April."""
    (tmp_path / "profiles").symlink_to(ROOT / "profiles")
    monkeypatch.chdir(tmp_path)
    apply_profile("embedded", ["data.synthetic.num_months=3", "data.synthetic.num_conversations=5400"])
    before = load_params()
    monkeypatch.setattr(loop, "_run", lambda *arguments, **options: "")
    version = SimpleNamespace(get_model_version_by_alias=lambda *name: SimpleNamespace(version="2"))
    monkeypatch.setattr(loop.mlflow, "MlflowClient", lambda: version)
    loop.Loop("sqlite:///f.db")._retrain(date(2022, 4, 15))
    after = load_params()
    assert after.data.synthetic == before.data.synthetic
    assert after.data.source == ["synthetic", "feedback"] and after.rank_grpo.since == "2022-04"
