"""What a stage's exit status means to its task, and which stages a flow runs."""

import pytest
from prefect.logging import disable_run_logger
from prefect.states import Failed

from convrec.errors import InputError, Unavailable
from tasks.artifacts import Progress
from tasks.dvc_stage import (
    BadInput,
    StageFailed,
    StageInterrupted,
    choose_stages,
    failure,
    is_retryable,
    run_stage,
    stages,
)
from tests.project import make_project, set_params


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (1, StageFailed),  # a defect of the program
        (2, BadInput),
        (74, StageFailed),  # a full disk
        (75, StageInterrupted),  # a server or a GPU is away
        (-9, StageInterrupted),  # killed, as when memory runs out or a machine is taken back
        (137, StageInterrupted),
        (143, StageInterrupted),
    ],
)
def test_only_what_another_try_may_cure_is_tried_again(status, kind):
    error = failure("stage sft", status, ["one", "two"])
    assert type(error) is kind and "stage sft ended with status" in str(error) and "one | two" in str(error)
    assert is_retryable(None, None, Failed(data=error)) == (kind is StageInterrupted)


def test_a_command_is_named_once_in_its_last_words():
    lines = ["10:00:00 step 3/80", "convrec promote: no version is the challenger"]
    message = "convrec promote ended with status 2; its last output: 10:00:00 step 3/80 | no version is the challenger"
    assert str(failure("convrec promote", 2, lines)) == message


def test_an_error_of_the_flow_itself_is_not_tried_again():
    assert not is_retryable(None, None, Failed(data=ValueError("no")))
    assert not is_retryable(None, None, Failed(data=InputError("Connection refused")))
    assert is_retryable(None, None, Failed(data=Unavailable("away")))
    assert is_retryable(None, None, Failed(data=OSError("HTTPConnectionPool: Max retries exceeded with url: /api")))


@pytest.mark.parametrize("text", ["{", "stages: 3", "stages: {data: {outs: [3]}}"])
def test_a_damaged_lock_is_told_in_one_line(tmp_path, monkeypatch, text):
    project = make_project(tmp_path / "project")
    (project / "dvc.lock").write_text(text)
    monkeypatch.chdir(project)
    with pytest.raises(InputError, match=r"dvc.lock.*; correct the file") as error:
        stages()
    assert "\n" not in str(error.value)


def test_stages_are_chosen_by_name_and_keep_their_order():
    assert [stage.name for stage in choose_stages(["sft", "data"], None)] == ["data", "sft"]
    assert choose_stages(None, ["data"]) == stages()
    assert all(stage.timeout_hours for stage in stages())
    for given in ((["stf"], None), (None, ["stf"])):
        with pytest.raises(InputError, match="'stf' is not a stage of dvc.yaml; give one of"):
            choose_stages(*given)


def _script(project, stage: str, script: str) -> None:
    """Let a stage of the project run a shell script."""
    graph = project / "dvc.yaml"
    graph.write_text(graph.read_text().replace(f"cmd: exec convrec run {stage}\n", f"cmd: {script}\n"))


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("echo no such folder; exit 2", BadInput, "stage data ended with status 2; its last output: no such folder"),
        ("exit 75", StageInterrupted, "status 75"),
        ("kill -9 $$", StageInterrupted, "status 137"),
        ("sleep 600", StageFailed, "exceeded its timeout_hours"),
    ],
)
def test_a_failed_stage_is_told_by_the_status_of_its_command(tmp_path, monkeypatch, script, kind, message):
    project = make_project(tmp_path / "project")
    _script(project, "data", script)
    monkeypatch.chdir(project)
    (stage,) = choose_stages(["data"], None)
    hours = 4 / 3600 if script.startswith("sleep") else 1
    with disable_run_logger(), pytest.raises(kind, match=message):
        run_stage.fn(stage._replace(timeout_hours=hours), False, None)


def test_a_stage_whose_input_is_missing_is_bad_input(tmp_path, monkeypatch):
    project = make_project(tmp_path / "project")
    set_params(project, {"data": {"source": "redial", "path": "no/such"}})
    monkeypatch.chdir(project)
    for stage, missing in zip(choose_stages(["data", "sft"], None), ("no/such", "data/demonstrations"), strict=True):
        with disable_run_logger(), pytest.raises(BadInput, match=f"last output: {missing}: no such file or folder"):
            run_stage.fn(stage, False, None)


def test_progress_is_read_from_the_steps_that_a_stage_logs(monkeypatch):
    shown = []
    monkeypatch.setattr(Progress, "_show", lambda self, percent: shown.append(percent))
    monkeypatch.setattr("tasks.artifacts._SECONDS", 0.0)
    progress = Progress("sft")
    for line in ("starting 1/2", "12:00:00 step 20/80  loss 1.2", "generated 30 of 40 lists", "step 1/0"):
        progress.read(line)
    assert shown == [25, 75]
