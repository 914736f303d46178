"""What the monthly flow does with raw data, on real repositories of git and DVC."""

import shutil
from contextlib import closing
from datetime import date
from pathlib import Path

import polars as pl
import pytest
from prefect.logging import disable_run_logger

from convrec.project.config.params import load_params
from convrec.project.errors import InputError
from convrec.service.feedback import FeedbackStore
from tasks.raw_data import export_feedback, periods, pull_raw_data, set_test_period, update_imports
from tests.answers import make_answer
from tests.small_project import ROOT, run_in, set_params

pytestmark = pytest.mark.slow  # many commands of DVC


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    for command in (("git", "init", "-q"), ("dvc", "init", "-q")):
        run_in(folder, *command)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def source(project) -> Path:
    """A file outside the project, which the project imports as data/dump.jsonl."""
    source = project.parent / "dump.jsonl"
    source.write_text("one\n")
    run_in(project, "dvc", "import-url", str(source), "data/dump.jsonl")
    return source


def _fetch() -> None:
    with disable_run_logger():
        update_imports.fn()
        pull_raw_data.fn()


def test_an_import_is_updated_from_its_source(project, source):
    source.write_text("one\ntwo\n")
    _fetch()
    assert (project / "data" / "dump.jsonl").read_text() == "one\ntwo\n"


@pytest.mark.usefixtures("source")
def test_an_update_that_fails_leaves_the_dvc_file_as_it_was(project, monkeypatch):
    file = project / "data" / "dump.jsonl.dvc"
    before = file.read_text()

    def fail(*_: str) -> None:
        file.write_text(before[:20])  # cut by a full disk
        raise InputError("dvc update failed")

    monkeypatch.setattr("tasks.raw_data._dvc", fail)
    with disable_run_logger(), pytest.raises(InputError):
        update_imports.fn()
    assert file.read_text() == before


@pytest.mark.parametrize("tracked", ["add", "import"])
def test_what_is_missing_comes_from_the_default_remote_as_it_was(project, source, tracked):
    data = project / "data" / "dump.jsonl"
    if tracked == "add":
        data.with_name("dump.jsonl.dvc").unlink()
        run_in(project, "dvc", "add", "data/dump.jsonl")
    run_in(project, "dvc", "remote", "add", "--default", "storage", str(project.parent / "storage"))
    run_in(project, "dvc", "push")
    source.write_text("one\ntwo\n")
    data.unlink()
    shutil.rmtree(project / ".dvc" / "cache")
    with disable_run_logger():
        pull_raw_data.fn()
    assert data.read_text() == "one\n"


def test_without_a_remote_the_cache_serves_and_what_is_nowhere_is_told(project):
    _fetch()  # nothing is tracked: the files at hand are used
    (project / "data" / "dump.jsonl").write_text("one\n")
    run_in(project, "dvc", "add", "data/dump.jsonl")
    (project / "data" / "dump.jsonl").unlink()
    _fetch()
    assert (project / "data" / "dump.jsonl").read_text() == "one\n"
    (project / "data" / "dump.jsonl").unlink()
    shutil.rmtree(project / ".dvc" / "cache")
    with pytest.raises(InputError, match="dvc checkout data/dump.jsonl.dvc failed"):
        _fetch()


@pytest.mark.parametrize(
    ("period", "validation", "test"),
    [("2023-01", "2022-12", "2023-01"), ("2022-04-08/2022-04-14", "2022-04-01/2022-04-07", "2022-04-08/2022-04-14")],
)
def test_the_test_period_moves_and_comments_stay(project, period, validation, test):
    shutil.copy(ROOT / "params.yaml", "params.yaml")
    with disable_run_logger():
        set_test_period.fn(period)
        text = Path("params.yaml").read_text()
        assert f"validation_period: {validation} " in text and f"  test_period: {test}\n" in text
        assert text.count("#") == (ROOT / "params.yaml").read_text().count("#")
        assert str(load_params().data.test_period) == test
        for wrong in ("2023-13", "January", "2022-04-14/2022-04-08"):
            with pytest.raises(InputError, match=f"test period '{wrong}' .*, or last-month, or last-week$"):
                set_test_period.fn(wrong)
    assert Path("params.yaml").read_text() == text


@pytest.mark.parametrize(
    ("word", "today", "validation", "test"),
    [
        ("last-month", "2022-03-01", "2022-01", "2022-02"),
        ("last-month", "2022-01-31", "2021-11", "2021-12"),
        ("last-week", "2022-04-15", "2022-04-01/2022-04-07", "2022-04-08/2022-04-14"),
        ("last-week", "2022-03-08", "2022-02-22/2022-02-28", "2022-03-01/2022-03-07"),
    ],
)
def test_last_is_the_last_whole_month_or_the_last_seven_whole_days(word, today, validation, test):
    assert tuple(map(str, periods(word, date.fromisoformat(today)))) == (validation, test)


@pytest.mark.parametrize("source", ["synthetic", ["synthetic", "feedback"]])
def test_feedback_is_exported_if_the_data_name_it(project, monkeypatch, source):
    shutil.copy(ROOT / "params.yaml", project)
    set_params(project, {"data": {"source": source}})
    monkeypatch.setenv("CONVREC_FEEDBACK_URL", f"sqlite:///{project}/feedback.db")
    with closing(FeedbackStore(f"sqlite:///{project}/feedback.db")) as store:
        store.write([make_answer("heat_1995")], [])
    with disable_run_logger():
        export_feedback.fn()
    path = project / "data/raw/feedback/feedback.parquet"
    assert path.exists() == (source != "synthetic")
    if path.exists():
        assert pl.read_parquet(path)["item_id"].to_list() == ["heat_1995"]
