import json
import re
import shutil
from types import SimpleNamespace
from unittest.mock import Mock

import mlflow
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

from convrec.data.catalog import Catalog, Item
from convrec.generation.lists import ListSettings
from convrec.project.config.params import load_params
from convrec.project.errors import InputError, Unavailable
from convrec.project.paths import Paths
from convrec.project.yaml import read_yaml
from convrec.registry import recommenders
from convrec.registry import versions as registry
from convrec.registry.model_card import checkpoint_digest, with_verdict
from tests.registry.registered import add_version, create_name, make_workspace
from tests.service.recommending import save_model
from tests.small_project import set_params


@pytest.fixture
def store(make_store, here) -> mlflow.MlflowClient:
    """A fresh local store."""
    return make_store(here)


def _system(ndcg: float) -> dict:
    names = ("ndcg_at_2", "ndcg_at_4", "recall_at_4", "in_catalog")
    intervals = {name: {"low": ndcg - 0.1, "high": ndcg + 0.1, "n": 12} for name in names}
    return {**dict.fromkeys(names, ndcg), "coverage": 0.5, "intervals": intervals}


def test_a_version_tells_what_it_was_made_from(store, tmp_path, monkeypatch):
    """Also where a second try finishes its registration."""
    make_workspace(tmp_path)
    paths = Paths()
    for seed, stage in enumerate(("sft", "rank_grpo")):
        save_model(paths.model(stage), seed)
    metrics = {name: _system(ndcg) for name, ndcg in (("popularity", 0.2), ("sft", 0.4), ("rank_grpo", 0.6))}
    metrics |= {"rank_grpo_free": _system(0.5), "n_rows": 12, "n_prompts": 12}
    metrics |= {"paired_ndcg_at_4": {"rank_grpo_over_sft": {"mean": 0.0, "low": 0.0, "high": 0.0, "n": 12, "p": 1.0}}}
    part = {"n_rows": 6, **{system: {"ndcg_at_4": {"mean": 0.7}} for system in ("sft", "rank_grpo")}}
    metrics |= {"slices": {"mentions": {"0": part, "1": part}, "new_items": {"known": {}}}}
    paths.predictions.mkdir()
    answers = pd.read_parquet(paths.split("test")).assign(response="Heat (1975)\nUp (2009)\nHer (2013)\nJaws (1975)")
    answers.to_parquet(paths.predictions / "rank_grpo.parquet")
    paths.results("evaluate").parent.mkdir()
    paths.results("evaluate").write_text(json.dumps(metrics))

    with monkeypatch.context() as patch, pytest.raises(ConnectionError):
        patch.setattr(mlflow.MlflowClient, "update_model_version", Mock(side_effect=ConnectionError("gone")))
        registry.register(load_params(), paths, None)
    version = registry.register(load_params(), paths, None)
    assert str(version.version) == "1", "once for the same weights"
    assert version.aliases == [registry.CHALLENGER]
    tags = version.tags
    assert tags["test.ndcg_at_4"] == "0.6000 [0.5000, 0.7000]", "as it is served"
    assert tags["algorithm"] == "rank_grpo" and tags["checkpoint.md5"] == checkpoint_digest(paths.model("rank_grpo"))
    assert tags["parent"] == f"sft {checkpoint_digest(paths.model('sft'))[:8]}" and len(tags) == 10
    assert tags["rank_grpo.verdict"] == "Rank-GRPO changed nothing that the test shows."
    text = with_verdict(with_verdict(version.description, "refused"), "promoted")
    assert "refused" not in text and text.replace("**Last decision.** promoted\n\n", "") == version.description
    assert mlflow.artifacts.load_dict(f"runs:/{version.run_id}/evaluate.json") == metrics

    folder = tmp_path / "fetched"
    mlflow.artifacts.download_artifacts(f"models:/{registry.model_name()}/{version.version}", dst_path=str(folder))
    assert read_yaml(folder / "artifacts" / "params.yaml") == load_params().model_dump()
    card = (folder / "artifacts" / "model_card.md").read_text()
    assert card == version.description and "- **Rank-GRPO**: NDCG@4 0.600 ± 0.100, Recall@4 0.600 ± 0.100" in card
    assert "simulated" in card and "- popularity: NDCG@4 0.200 ± 0.100" in card
    assert "|" not in card and "free" not in card
    assert "- NDCG@4 by titles that the conversation names: 0 0.700 (6 rows), 1 0.700 (6 rows).\n" in card
    assert "- “a film with heists please, number 0” → Heat (1975); Up (2009); Her (2013)\n" in card
    assert "`champion` marks the version" in store.get_registered_model(registry.model_name()).description
    info = mlflow.models.get_model_info(f"models:/{registry.model_name()}/{version.version}")
    assert info.signature.params is not None and (folder / "input_example.json").is_file()
    code = folder / "code" / "convrec"
    assert (code / "cli.py").is_file() and registry.DEMO_FOLDER.is_dir() and not (code / registry.DEMO).exists()
    (torch,) = re.findall(r"^torch==(.*)$", (folder / "requirements.txt").read_text(), re.M)
    assert re.fullmatch(r"[\d.]+", torch), "an index has no +cpu"
    assert "model_card.md" in {artifact.path for artifact in store.list_artifacts(version.run_id)}
    model = registry.download_version(f"models:/{registry.model_name()}/{version.version}")
    assert checkpoint_digest(model.checkpoint) == tags["checkpoint.md5"]
    assert model.settings == ListSettings(**load_params().list_settings())

    sft = registry.register(load_params(), paths, None, "sft")
    assert sft.tags["test.ndcg_at_4"].startswith("0.4000 ") and sft.tags["algorithm"] == "sft"
    assert sft.tags["parent"] == "embedded"
    store.set_registered_model_alias(registry.model_name(), registry.CHAMPION, version.version)
    Catalog([Item(f"Game {number}", 2000) for number in range(9)]).to_frame().to_parquet(paths.catalog)
    with pytest.raises(
        InputError, match=r"catalog.parquet \(9 items, as Game 0 .*version 1 of convrec-movies \(15 items"
    ):
        registry.register(load_params(), paths, None)
    shutil.rmtree(paths.model("sft"))
    with pytest.raises(InputError, match="models/sft/config.json: not made yet"):
        registry.register(load_params(), paths, None, "sft")


def test_each_domain_has_a_registered_model_of_its_own(store, tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("CONVREC_MODEL")
    with pytest.raises(InputError, match="params.yaml: no project here; .* or set CONVREC_MODEL"):
        registry.model_name()
    make_workspace(tmp_path)
    for items, chosen, name in (
        ("movies", None, "convrec-movies"),
        ("board games", None, "convrec-board-games"),
        ("movies", "films-of-mine", "films-of-mine"),
    ):
        set_params(tmp_path, {"common": {"domain": {"items": items}}, "registry": {"model": chosen}})
        assert load_params().registered_model == name == registry.model_name()
    monkeypatch.setenv("CONVREC_MODEL", "convrec-songs")
    assert registry.model_name() == "convrec-songs"


def test_a_missing_champion_is_told_with_the_models_that_the_registry_has(store):
    with pytest.raises(InputError) as refused:
        registry.download_version("models:/convrec-movies@champion")
    assert "no version is the champion" in str(refused.value)
    assert "--model challenger" not in str(refused.value), "there is none"
    assert "also has" not in str(refused.value)
    store.create_registered_model("convrec-books")  # of a worker's project; the service looks for another one
    with pytest.raises(InputError, match="convrec-movies@champion.* also has convrec-books: CONVREC_MODEL, or else"):
        registry.served_versions(with_challenger=False)
    create_name(store)
    store.set_registered_model_alias(registry.model_name(), registry.CHALLENGER, add_version(store))
    with pytest.raises(InputError, match="not promoted answers with --model challenger"):
        registry.download_version("models:/convrec-movies@champion")


def test_models_of_other_catalogs_are_not_compared():
    films = Catalog([Item(f"Film {number}", 1990 + number) for number in range(10)])
    games = Catalog([Item(f"Game {number}", 1990 + number) for number in range(30)])
    both = Catalog([*games.items, films.items[0]])
    registry.require_shared_items({"version 1": films, "version 2": both})  # a tenth of the smaller one
    with pytest.raises(InputError) as refused:
        registry.require_shared_items({"version 1 of convrec": films, "data/processed/catalog.parquet": games})
    assert str(refused.value).startswith(
        "version 1 of convrec (10 items, as Film 0 (1990)) and data/processed/catalog.parquet (30 items, as Game 0 "
        "(1990)) recommend from different catalogs: they share 0 items"
    )


def test_models_of_other_catalogs_are_not_shown_beside_each_other(tmp_path, monkeypatch):
    for name, items in (("one", "Film"), ("other", "Game")):
        Catalog([Item(f"{items} {number}", 2000) for number in range(9)]).to_frame().to_parquet(tmp_path / name)
    monkeypatch.setattr(recommenders, "find_recommender", lambda name, _: SimpleNamespace(catalog=tmp_path / name))

    def make_served(_version, files):
        return SimpleNamespace(warm=lambda: None, translator=SimpleNamespace(catalog=Catalog.read(files.catalog)))

    source = recommenders.RegistrySource("one", "other", make_served)
    source.load("one")
    with pytest.raises(InputError, match=r"^one \(9 items, as Film 0 .* and other \(9 items, as Game 0"):
        source.load("other")


@pytest.mark.parametrize(
    ("call", "read"),
    [
        ("MlflowClient.get_model_version", lambda: registry.find_version(mlflow.MlflowClient(), "1")),
        ("MlflowClient.get_model_version_by_alias", lambda: registry.find_version(mlflow.MlflowClient())),
        ("artifacts.download_artifacts", lambda: registry.download_version("models:/convrec-movies/1")),
    ],
)
def test_a_registry_that_is_away_is_not_one_without_the_version(store, monkeypatch, call, read):
    create_name(store)
    with pytest.raises(InputError, match="not in the registry"):
        read()
    away = Mock(side_effect=MlflowException("API request to /api/2.0/mlflow failed with error code 503 != 200"))
    monkeypatch.setattr(f"mlflow.{call}", away)
    with pytest.raises(Unavailable, match="cannot be reached .*error code 503"):
        read()
    away.side_effect = MlflowException("API request failed with error code 403", PERMISSION_DENIED)
    with pytest.raises(InputError, match="denies access"):
        read()
