"""The GPUs of each worker, and what a worker without models reports."""

import pytest
from prefect.logging import disable_run_logger

from convrec.hardware.machine import visible_gpus
from tasks.dvc_stage import BadInput, choose_stages
from tasks.shards import divide, write_shard
from tests.project import make_project


@pytest.mark.parametrize(
    ("gpus", "size", "workers", "shares"),
    [
        ("0123", 1, 2, ["0", "1"]),
        ("0123", 2, 2, ["0,1", "2,3"]),
        ("01234", 2, 2, ["0,1", "2,3"]),
        ("01", 1, 3, ["0", "1", "0"]),
        ("0", 2, 2, [None, None]),
        ("", 1, 2, [None, None]),
    ],
)
def test_each_worker_has_gpus_of_its_own_while_there_are_enough(gpus, size, workers, shares):
    assert divide(list(gpus), size, workers) == shares


def test_only_the_gpus_that_the_flow_may_use_are_divided(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5f6e")
    assert divide(visible_gpus(), 1, 2) == ["2", "GPU-5f6e"]


def test_a_worker_without_models_is_bad_input(tmp_path, monkeypatch):
    monkeypatch.chdir(make_project(tmp_path / "project"))
    (stage,) = choose_stages(["evaluate"], None)
    with disable_run_logger(), pytest.raises(BadInput, match="shard 2 of 3 ended with status 2; .*not made yet"):
        write_shard.fn(stage, 2, 3, None)
