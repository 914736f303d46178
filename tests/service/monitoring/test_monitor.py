"""`convrec monitor` on recorded feedback of the embedded world: silent until its users change, and then not."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import mlflow
import pytest
from ruamel.yaml import YAML

from convrec.data.catalog import Catalog
from convrec.project.paths import Paths
from convrec.registry import tracking
from convrec.registry.versions import CHAMPION, model_name
from convrec.service.feedback.store import FeedbackStore
from convrec.service.monitoring.window import read_feedback
from tests.answers import make_answer
from tests.classical.test_embedding import _make_model
from tests.registry.registered import add_version, create_name
from tests.service.monitoring.conftest import CHANGE, end_of
from tests.small_project import set_params

JUNE = datetime(2022, 6, 1, tzinfo=UTC)
CHANGED = {"conversations", "named_items", "accepted_before", "acceptance"}


@pytest.fixture
def project(watched_project, monkeypatch) -> Iterator[Path]:
    """The project, entered; its champion is version 1. What a test changes in its YAML files is undone."""
    settings = {path: path.read_bytes() for path in watched_project.glob("*.yaml")}
    monkeypatch.chdir(watched_project)
    monkeypatch.delenv("CONVREC_FEEDBACK_URL", raising=False)
    tracking.connect()
    client = mlflow.MlflowClient()
    if not client.search_registered_models():
        create_name(client)
        number = add_version(client, **{"test.ndcg_at_20": "0.4302 [0.4215, 0.4396]"})
        client.set_registered_model_alias(model_name(), CHAMPION, number)
    yield watched_project
    for path, content in settings.items():
        path.write_bytes(content)


def _day(week: int) -> str:
    return f"{end_of(week):%Y-%m-%d}"


def test_the_change_is_an_alarm_in_its_first_week_and_not_before(project, cli):
    before = cli("monitor", "--until", _day(CHANGE - 1))
    assert before.status == 0, before.out
    *lines, report = before.out.splitlines()
    assert len(lines) == 9 and all(": ok: " in line for line in lines) and report == "Report: runs/monitoring.html"
    after = cli("monitor", "--until", _day(CHANGE), "--json")
    assert after.status == 3
    found = json.loads(after.out)
    alarms = {check["name"] for check in found["checks"] if check["status"] == "alarm"}
    assert {"named_items", "acceptance"} <= alarms <= CHANGED
    assert found["model"] == "convrec-movies version 1"
    run = mlflow.MlflowClient().get_run(found["run_id"])
    assert set(run.data.tags["alarm"].split(", ")) == alarms and run.data.metrics["alarms"] == len(alarms)
    assert run.data.metrics["acceptance/figure"] > 0.2
    names = [file.path for file in mlflow.MlflowClient().list_artifacts(found["run_id"])]
    assert {"monitoring.html", "monitoring.json"} <= set(names)
    page = Path(found["report"]).read_text(encoding="utf-8")
    assert page.count('<span class="tag">alarm</span>') == len(alarms) and "NDCG@20 0.4302" in page


def test_a_sentence_transformer_embeds_the_conversations(project, cli, tmp_path):
    set_params(project, {"demonstrations": {"embedder": {"name": _make_model(tmp_path, 0)}}})
    ended = cli("monitor", "--until", _day(0))
    assert ended.status == 0 and "conversations: ok: " in ended.out


def test_a_week_without_answers_is_not_judged(project, cli):
    ended = cli("monitor", "--until", "2021-01-01")
    assert ended.status == 0 and ended.out.count("not enough data: ") == 9
    assert "acceptance: not enough data: 0 answers, at least 200 are needed\n" in ended.out
    assert "No answers were recorded in this time." in Path("runs/monitoring.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 7}, "window: unknown field"),
        ({"checks": {"acceptance": {"max": 1.5, "min_sample": 9}}}, "checks.acceptance.max = 1.5: "),
        ({"checks": {"acceptance": {"max": 0.5}}}, "checks.acceptance.min_sample: missing"),
        ({"checks": {"drift": {"max": 0.5, "min_sample": 9}}}, "checks.drift: unknown field"),
    ],
)
def test_mistakes_in_monitoring_yaml_are_told(project, cli, change, message):
    path = Path("monitoring.yaml")
    YAML().dump({**YAML().load(path), **change}, path)
    ended = cli("monitor")
    assert ended.status == 2 and f"monitoring.yaml: {message}" in ended.err and ended.err.count("\n") == 1


def test_what_is_missing_is_told(project, cli, tmp_path, monkeypatch):
    assert "until = 0001-01-01: give a day from 1970 on" in cli("monitor", "--until", "0001-01-01").err
    assert "none.db: no feedback was recorded" in cli("monitor", "--feedback", "sqlite:///none.db").err
    (tmp_path / "params.yaml").write_bytes(Path("params.yaml").read_bytes())
    monkeypatch.chdir(tmp_path)
    assert "monitoring.yaml: no such file" in cli("monitor").err
    (tmp_path / "monitoring.yaml").write_bytes((project / "monitoring.yaml").read_bytes())
    assert "train.parquet: no data yet; run `dvc repro data` first" in cli("monitor").err


def _monitor(cli, folder, answers) -> dict[str, Any]:
    """Return what the command finds of these answers alone at the beginning of June."""
    url = f"sqlite:///{folder / 'other.db'}"
    with closing(FeedbackStore(url)) as store:
        store.write(answers, [])
    return json.loads(cli("monitor", "--until", f"{JUNE:%Y-%m-%d}", "--feedback", url, "--json").out)


def test_failures_of_the_service_are_alarms(project, cli, tmp_path, caplog):
    """Of 300 answers, 30 are empty, one has an item that is not in the catalog, one has an item twice, all are slow.

    Twenty more have only items of another catalog: they do not count, which the report says.
    """
    ids, answers = [item.id for item in Catalog.read(Paths().catalog).items[:9]], []
    for number in range(320):
        items = [f"game-{item}" for item in ids] if number >= 300 else list(ids)
        if number < 30:
            items = []
        elif number == 30:
            items[3] = "unknown"
        elif number == 31:
            items[3] = ids[0]
        time = JUNE - timedelta(minutes=number + 1)
        answers.append(make_answer(*items, time=time, latency_seconds=6.0 + number / 100))
    found = _monitor(cli, tmp_path, answers)
    assert "20 answers without any item of the catalog do not count" in caplog.text
    page = Path("runs/monitoring.html").read_text(encoding="utf-8")
    assert "<dt>Answers without a catalog item</dt><dd>20<small>not counted: " in page
    assert found["not_counted"] == 20
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["empty_answers"]["figure"] == 0.1 and checks["empty_answers"]["detail"] == "30 answers"
    assert checks["not_in_catalog"]["detail"] == "2 answers" and checks["not_in_catalog"]["n"] == 270
    alarms = {name for name, check in checks.items() if check["status"] == "alarm"}
    assert {"empty_answers", "not_in_catalog", "latency_p95_seconds"} == alarms
    assert checks["conversations"]["status"] == "not enough data", "none are stored"


def test_one_id_for_everybody_gives_not_enough_data(watched_project, project, cli, tmp_path):
    """All of the changed week's feedback of one user, or of few: figures of persons raise no alarm, nor a traceback."""
    copy, url = tmp_path / "one.db", f"sqlite:///{tmp_path / 'one.db'}"
    shutil.copy("feedback/feedback.db", copy)
    for name in ("'everybody'", "'user ' || (rowid % 19)"):
        with closing(sqlite3.connect(copy)) as database, database:
            database.execute(f"UPDATE answers SET user_id = {name}")
        ended = cli("monitor", "--until", _day(CHANGE), "--feedback", url, "--json")
        assert ended.status == 0
        checks = {check["name"]: check for check in json.loads(ended.out)["checks"]}
        own = {"latency_p95_seconds", "not_in_catalog"}  # of the service, whoever asks
        assert {name for name, check in checks.items() if check["status"] == "ok"} == own
        assert all(check["n"] < check["min_sample"] == 20 for name, check in checks.items() if name not in own)
        assert all(check["unit"] == "users" for name, check in checks.items() if name not in own)
        assert "too few users for an interval" in Path("runs/monitoring.html").read_text(encoding="utf-8")


def test_one_users_empty_answers_are_not_those_of_many(project, cli, tmp_path):
    """One user of 100 has 30 empty answers of 129: 23 % of all, and still one user."""
    item, answers = Catalog.read(Paths().catalog).items[0].id, []
    for number in range(129):
        items, user = ([], "odd") if number < 30 else ([item], f"user {number}")
        answers.append(make_answer(*items, time=JUNE - timedelta(minutes=number + 1), user_id=user))
    (empty,) = (check for check in _monitor(cli, tmp_path, answers)["checks"] if check["name"] == "empty_answers")
    assert empty["figure"] == pytest.approx(30 / 129) and (empty["low"], empty["status"]) == (0, "ok")


def test_the_window_is_read_in_parts(watched_project, monkeypatch):
    catalog = Catalog.read(Paths(watched_project).catalog)
    with closing(FeedbackStore(f"sqlite:///{watched_project / 'feedback' / 'feedback.db'}")) as store:
        period = end_of(0), end_of(3)
        whole, sizes, read_rows = read_feedback(store, catalog, *period), [], FeedbackStore._read
        monkeypatch.setattr("convrec.service.feedback.store._PERIOD", 50)
        monkeypatch.setattr(FeedbackStore, "_read", lambda *arguments: sizes.append(read_rows(*arguments)) or sizes[-1])
        parts = read_feedback(store, catalog, *period, with_messages=False)
    assert max(map(len, sizes)) <= 51 * 10 and len(whole.answers) == 3 * 220
    assert parts.answers.drop("messages").equals(whole.answers.drop("messages"))
    assert parts.accepted.equals(whole.accepted) and parts.ranks.equals(whole.ranks)
    assert parts.answers["messages"].null_count() == 3 * 220 and whole.answers["messages"].null_count() == 0
    assert whole.ranks["shown"].to_list() == [660] * 10
