"""What a refresh leaves behind."""

import shutil
from unittest.mock import MagicMock

import pytest
from prefect.logging import disable_run_logger

import flows.refresh
from convrec.project.config.params import load_params
from tasks.command import StageFailed
from tests.small_project import ROOT


@pytest.mark.parametrize("fails", [True, False])
def test_a_refresh_that_fails_leaves_params_yaml_as_it_was(here, monkeypatch, fails):
    shutil.copy(ROOT / "params.yaml", here)
    before, periods, run = (here / "params.yaml").read_text(), [], MagicMock()

    def work(_name, before, after_data):
        before()
        after_data(run)
        periods.append(str(load_params().data.test_period))
        if fails:
            raise StageFailed("data ended with status 2")
        return {}

    monkeypatch.setattr("flows.refresh.bring_up_to_date", work)
    monkeypatch.setattr("flows.refresh.check_folder", lambda: None)
    monkeypatch.setattr("flows.refresh.show_changes", lambda since: MagicMock() if since == "HEAD" else None)
    for name in ("update_imports", "export_feedback"):
        monkeypatch.setattr(f"flows.refresh.{name}", lambda: None)
    monkeypatch.setattr("flows.refresh.set_test_period", flows.refresh.set_test_period.fn)
    with disable_run_logger():
        if fails:
            with pytest.raises(StageFailed):
                flows.refresh.refresh.fn("2022-10")
        else:
            flows.refresh.refresh.fn("2022-10")
    assert periods == ["2022-10"]
    assert [call.args[1] for call in run.log_text.call_args_list] == ["changes/diff.txt", "changes/diff.json"]
    assert ((here / "params.yaml").read_text() == before) == fails
