"""Stage = module in stages/ = command, and dvc.yaml is the only graph."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from convrec.pipeline.commands.stage import STAGES
from convrec.project.code import stage_code
from convrec.project.config.params import Params
from convrec.project.yaml import read_yaml
from tasks.dvc_stage import stages as graph_stages
from tests.small_project import ROOT, run_in

GRAPH = read_yaml(Path("dvc.yaml"))["stages"]


def test_names_agree():
    assert set(GRAPH) == set(STAGES)
    assert set(Params.model_fields) == set(read_yaml(Path("params.yaml"))) <= {"common", "registry", *STAGES}
    for stage in STAGES:
        assert importlib.util.find_spec(f"convrec.pipeline.stages.{stage}")
        assert GRAPH[stage]["cmd"] == f"exec convrec run {stage}"


@pytest.mark.parametrize("stage", STAGES)
def test_the_deps_on_code_hold_the_modules_that_a_stage_imports_and_no_other_package(stage):
    deps = [Path(dep).absolute() for dep in GRAPH[stage]["deps"] if dep.startswith("src/")]
    code = stage_code(stage)
    assert not [file for file in code if not any(file.is_relative_to(dep) for dep in deps)]
    assert not [dep for dep in deps if not any(file.is_relative_to(dep) for file in code)]


def test_the_flow_reads_its_order_from_the_graph():
    order = [stage.name for stage in graph_stages()]
    assert sorted(order) == sorted(STAGES)
    made = {out: stage for stage in GRAPH for out in GRAPH[stage]["outs"]}
    for stage in order:
        for dep in GRAPH[stage]["deps"]:
            if dep in made:
                assert order.index(made[dep]) < order.index(stage)
    on_gpus = {stage.name for stage in graph_stages() if stage.gpu}
    assert on_gpus == {"base_model", "sft", "guidance", "rank_grpo", "evaluate"}


def test_a_checkout_has_the_same_bytes_on_every_system(tmp_path):
    for name in (".gitattributes", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    run_in(tmp_path, "git", "-c", "init.defaultBranch=main", "init", "--quiet")
    run_in(tmp_path, "git", "config", "core.autocrlf", "true")  # as on Windows
    run_in(tmp_path, "git", "add", "-A")
    (tmp_path / "dvc.yaml").unlink()
    run_in(tmp_path, "git", "checkout", "--", "dvc.yaml")
    assert (tmp_path / "dvc.yaml").read_bytes() == (ROOT / "dvc.yaml").read_bytes()
