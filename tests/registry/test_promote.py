"""Promotion from the comparison to the alias: real versions in a real store, their lists written by hand or not."""

import contextlib
import json
import logging
import shutil
import tempfile
from pathlib import Path
from unittest.mock import Mock

import mlflow
import pandas as pd
import pytest
from ruamel.yaml import YAML

from convrec.data.catalog import Catalog, Item
from convrec.evaluation.sequential import Look
from convrec.generation import lists
from convrec.pipeline.stages import evidence
from convrec.project.config.params import load_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.registry import measure, tracking
from convrec.registry.decisions import ALREADY, AWAITING, LATENCY, PROMOTED, REFUSED, Decision
from convrec.registry.experiment import Result, Side, finish, start_experiment
from convrec.registry.model_card import checkpoint_digest
from convrec.registry.moves import roll_back
from convrec.registry.promote import promote
from convrec.registry.versions import model_name, read_aliases
from convrec.service.app import server
from tests.registry.registered import NUM_PROMPTS, SIZE, make_workspace, moves_of, register_model
from tests.registry.test_gates import GAIN, failing
from tests.service.recommending import TITLES


@pytest.fixture(scope="module")
def made(make_store, tmp_path_factory) -> Path:
    """A workspace with three registered versions of untrained models, no champion."""
    folder = make_workspace(tmp_path_factory.mktemp("made"))
    client = make_store(folder)
    with contextlib.chdir(folder):
        for seed in range(3):
            register_model(client, folder / f"version-{seed}", seed)
    return folder


@pytest.fixture
def client(made, tmp_path, monkeypatch) -> mlflow.MlflowClient:
    """The store of a copy of that, entered."""
    shutil.copytree(made, tmp_path / "project", ignore=shutil.ignore_patterns("version-*", "artifacts"))
    monkeypatch.chdir(tmp_path / "project")
    tracking.connect()
    return mlflow.MlflowClient()


def _list(number: int, rank: int) -> str:
    """Return four lines with the prompt's truth at a rank, the others films that it is not."""
    films = [f"{title} ({1975 + 3 * place})" for place, title in enumerate(TITLES)]
    truth = films.pop(number)
    lines = [films[(number + place) % len(films)] for place in range(SIZE)]
    lines[rank - 1] = truth
    return "\n".join(lines)


@pytest.fixture
def ranks(made, monkeypatch) -> dict[str, object]:
    """What the versions write in place of their own: by version, the truth's rank. Latencies are 0.1 s."""
    written: dict[str, object] = {"1": 3, "2": 3, "3": 3, "asked": []}
    versions = {checkpoint_digest(made / f"version-{seed}" / "artifacts" / "model"): str(seed + 1) for seed in range(3)}

    class Written:
        def __init__(self, folder):
            self.version = versions[checkpoint_digest(Path(folder))]

        def stream(self, prompts, requests):
            written["asked"].append(self.version)
            for index in range(len(prompts)):
                yield [(index, _list(index, written[self.version]))]

        def close(self):
            pass

    monkeypatch.setattr(lists, "load_engine", lambda folder, *_: Written(folder))
    monkeypatch.setattr(measure, "latencies", lambda params, paths, models, prompts: [0.1 for _ in models])
    return written


def _promote(version: str, **options) -> Decision:
    return promote(load_params(), Paths(), version, by="ops", **options)


def _set_policy(**changes) -> None:
    yaml, path = YAML(), Path("promotion.yaml")
    policy = yaml.load(path)
    policy.update(changes)
    yaml.dump(policy, path)


def _champion(client) -> str | None:
    return read_aliases(client).get("champion")


def _status(client, version: str) -> str | None:
    return client.get_model_version(model_name(), version).tags.get("promotion.status")


def test_first_better_worse_and_the_champion_itself(client, ranks):
    ranks |= {"1": 3, "2": 1, "3": 4}
    assert _promote("1", dry_run=True).status == PROMOTED
    assert _champion(client) is None and _status(client, "1") is None and moves_of(client) == []
    first = _promote("1")
    assert first.status == PROMOTED and first.champion is None and first.comparison.gains == {}
    assert _promote("1").status == ALREADY
    better = _promote("2")
    assert better.status == PROMOTED and _champion(client) == "2"
    gain = better.comparison.gains["ndcg"]  # of rank 1 over rank 3: 1 - 1 / log2(4)
    assert (gain.mean, gain.low, gain.high) == pytest.approx((0.5, 0.5, 0.5)) and gain.n == NUM_PROMPTS
    assert gain.p < 0.05
    worse = _promote("3")
    assert worse.status == REFUSED and _champion(client) == "2"
    assert GAIN in failing(worse) and _status(client, "3") == "refused"
    assert [move["to_version"] for move in moves_of(client)] == ["1", "2"]


def test_a_version_of_another_catalog_is_refused_before_any_list(client, ranks):
    Catalog([Item(f"Game {number}", 2000) for number in range(40)]).to_frame().to_parquet(Paths().catalog)
    with pytest.raises(
        InputError, match=r"version 1 of convrec-movies \(15 items, .*catalog.parquet \(40 items, as Game 0"
    ):
        _promote("1")
    assert ranks["asked"] == [] and _champion(client) is None


def test_a_baseline_that_the_data_cannot_have_is_named(client, ranks):
    path = Paths().split("train")
    pd.read_parquet(path).assign(date="").to_parquet(path)
    _set_policy(baselines={"names": ["last_month"], "metric": "ndcg", "min": 0.0})
    with pytest.raises(InputError, match=r"promotion.yaml: baselines.names: last_month needs a training split with da"):
        _promote("1")
    assert ranks["asked"] == [], "before any list is written"
    _set_policy(baselines={"names": ["all"], "metric": "ndcg", "min": -1.0})
    evidence.run(load_params(), Paths(), Mock())
    baselines = set(_promote("1").comparison.baselines)
    assert baselines - {"fusion"} == {"popularity", "neighbours"}, "no title is named; 12 prompts may give no weight"


def test_a_version_that_users_preferred_is_promoted_despite_the_test_rows(client, ranks):
    ranks |= {"1": 3, "2": 4}
    _set_policy(experiment={"replaces": ["gains", "slices"]})
    assert _promote("1").status == PROMOTED, "a first version has nothing to be compared with"
    refused = _promote("2")
    assert failing(refused) == ["online experiment"] and "`convrec experiment start`" in refused.reason
    experiment = start_experiment(client, "2", 0.5, "ops")
    sides = Side("champion", "1", 100, 100, 150), Side("challenger", "2", 100, 100, 250)
    result = Result(experiment, sides, (Look(200, 200, 1.0, 0.5, 1.5, 0.001),))
    assert failing(_promote("2")) == ["online experiment"], "while it is running"
    assert finish(client, result, "better", "ops").verdict == "better"
    ranks["asked"].clear()
    promoted = _promote("2")
    assert promoted.status == PROMOTED and _champion(client) == "2" and ranks["asked"] == []
    assert f"in the online experiment {experiment.id}." in promoted.reason


def test_the_decision_is_written_to_version_and_run(client, ranks):
    ranks |= {"1": 3, "2": 1}
    _promote("1")
    decision = _promote("2")
    version = client.get_model_version(model_name(), "2")
    tags = {name: version.tags[f"promotion.{name}"] for name in ("status", "number", "decision")}
    told = f"{decision.reason} (ops, {decision.at[:10]} {decision.at[11:16]} UTC)"
    assert tags == {"status": "promoted", "number": "1", "decision": told}
    whole = mlflow.artifacts.load_dict(f"runs:/{version.run_id}/promotion/decision-1.json")
    assert whole == json.loads(json.dumps(decision.to_json()))
    assert whole["comparison"]["n_rows"] == NUM_PROMPTS
    assert set(whole["comparison"]["data"]) == {"test", "train", "validation", "catalog"}
    assert whole["policy"]["gains"]["ndcg"] == {"min": 0.0, "max_p": 0.05}
    text = mlflow.artifacts.load_text(f"runs:/{version.run_id}/promotion/decision-1.md")
    assert f"| {GAIN} | 0.5000 | above 0 | holds |" in text and decision.reason in text
    shown = f"**Last decision.** {decision.reason}"
    assert version.description == shown == mlflow.artifacts.load_text(f"runs:/{version.run_id}/model_card.md")
    move = moves_of(client)[-1]
    assert (move["kind"], move["by"], move["decision"]) == ("promote", "ops", "promotion/decision-1.json")


def test_approval_is_awaited_and_given(client, ranks):
    ranks |= {"1": 3, "2": 1}
    _promote("1")
    _set_policy(approval="required")
    awaited = _promote("2")
    assert awaited.status == AWAITING and _champion(client) == "1"
    assert _status(client, "2") == "awaiting approval"
    ranks["asked"].clear()
    rows = pd.read_parquet(Paths().split("test"))
    rows.assign(groundtruth=rows["groundtruth"].iloc[::-1].tolist()).to_parquet(Paths().split("test"))
    worse = _promote("2", approve=True, dry_run=True)
    assert worse.status == REFUSED and failing(worse), "an approval is of the figures on the current data"
    rows.to_parquet(Paths().split("test"))
    given = _promote("2", approve=True)
    assert given.status == PROMOTED and given.approval["by"] == "ops" and given.number == 2
    assert _champion(client) == "2" and ranks["asked"] == []


def test_what_is_done_stays_done_if_it_cannot_be_recorded(client, ranks, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ranks |= {"1": 3, "2": 1}
    _promote("1")
    assert not [*tmp_path.glob("tmp*")], "the compared files go"
    fail = Mock(side_effect=ConnectionError("away"))
    with monkeypatch.context() as away:
        away.setattr(mlflow.MlflowClient, "log_text", fail)
        assert _promote("2").status == PROMOTED
        away.setattr(mlflow.MlflowClient, "set_model_version_tag", fail)
        assert roll_back(client, "ops", "").to_version == "1"
    assert _champion(client) == "1"
    assert "the promotion of version 2 is done, but could not be recorded (away)" in caplog.text
    assert "the rollback from version 2 to 1 is done" in caplog.text


def _meanwhile(monkeypatch, happens) -> None:
    """Let something happen after the next comparison, before its decision."""
    compare = measure.compare_versions

    def compared(*arguments):
        found = compare(*arguments)
        monkeypatch.setattr(measure, "compare_versions", compare)
        happens()
        return found

    monkeypatch.setattr(measure, "compare_versions", compared)


def test_a_champion_that_changed_meanwhile_is_not_overwritten(client, ranks, monkeypatch):
    ranks |= {"1": 3, "2": 1, "3": 2}
    _promote("1")
    _meanwhile(monkeypatch, lambda: _promote("3"))
    refused = _promote("2")
    why = "the champion changed from version 1 to 3 while version 2 was measured; promote again"
    assert (refused.status, refused.reason) == (REFUSED, why)
    assert _champion(client) == "3" and _status(client, "2") == "refused"
    _meanwhile(monkeypatch, lambda: _promote("2"))
    assert _promote("2").status == ALREADY, "promoted by another process"
    assert _champion(client) == "2" and _status(client, "2") == "promoted"


def test_rollback_and_the_word_again(client, ranks):
    ranks |= {"1": 4, "2": 3, "3": 1}
    for version in "123":
        _promote(version)
    move = roll_back(client, "lead", "complaints")
    assert (move.from_version, move.to_version) == ("3", "2") and _champion(client) == "2"
    assert _status(client, "3") == "rolled back"
    refused = _promote("3")
    assert failing(refused) == ["earlier rollback"] and "complaints" in refused.gates[-1].detail
    assert _promote("3", again=True).status == PROMOTED
    roll_back(client, "lead", "")
    roll_back(client, "lead", "")
    assert _champion(client) == "1"


def test_models_that_are_alike_are_told_apart_by_nobody(client, cli):
    """Untrained models, their own lists and latencies, by the commands."""
    rails = {"latency_p95_seconds": {"max": 60.0}, "in_catalog": {"min": 1.0}}
    _set_policy(guard_rails=rails, baselines={"names": []})
    first = cli("promote", "--version", "1")
    assert first.status == 0 and "there was no champion" in first.out
    status, out, _ = cli("promote", "--json", "--by", "ops")
    decision = json.loads(out)
    assert status == 3
    assert (decision["challenger"], decision["champion"], decision["status"]) == ("3", "1", "refused")
    for side in ("challenger", "champion"):
        means = decision["comparison"][side]["means"]
        assert means["in_catalog"] == 1 and means["length"] == SIZE and 0 < means[LATENCY] < 60
    again = cli("promote", "--version", "1")
    assert again.status == 0 and "Version 1 is the champion already" in again.out
    status, out, _ = cli("promote", "--dry-run")
    assert (
        status == 3
        and "FAILS" in out
        and out.startswith("On 12 test rows, version 3 is ")
        and "nothing was written" in out
    )
    assert not logging.getLogger("convrec.classical.evidence").isEnabledFor(logging.INFO), "of each timed answer"
    status, out, _ = cli("registry", "list")
    assert status == 0 and all(word in out for word in ("champion", "refused", "not decided"))
    assert out.startswith("Versions of convrec-movies\n")
    undone = cli("rollback")
    assert undone.status == 2 and "first champion" in undone.err


def test_without_a_champion_the_newest_version_answers(client, cli, caplog, monkeypatch):
    def opened(*command: str) -> list[str]:
        caplog.clear()
        assert cli(*command).status == 0
        return [message for message in caplog.messages if "version" in message]

    question, app, served = ["recommend", "a film", "-n", "2"], ["app", "--port", "0", "--feedback", "none"], Mock()
    monkeypatch.setattr(server, "run", served)
    told = "No champion yet: this is version 3, the newest one%s. `convrec promote` decides on it."
    assert opened(*question) == [told % " (challenger)"]
    assert opened(*app)[0] == told % " (challenger)" and served.called
    client.delete_registered_model_alias(model_name(), "challenger")
    assert opened(*question) == [told % ""], "it answers all the same"
    client.set_registered_model_alias(model_name(), "champion", "1")
    assert opened(*question) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["promote", "--version", "9"], "models:/convrec-movies/9: not in the registry"),
        (["promote", "--approve"], "give --by NAME"),
        (["rollback"], "there is no champion to roll back"),
        (["registry", "register"], "models/rank_grpo/config.json: not made yet"),
    ],
)
def test_mistakes_are_told(client, cli, arguments, message):
    refused = cli(*arguments)
    assert refused.status == 2 and message in refused.err


def test_without_policy_or_data_nothing_is_compared(client, ranks, cli):
    for missing, message in ((Paths().split("test"), "no data yet"), (Path("promotion.yaml"), "yaml: no such file")):
        missing.unlink()
        refused = cli("promote")
        assert refused.status == 2 and message in refused.err
    assert ranks["asked"] == []
