"""Stage = section of params.yaml = module in stages/ = command, and dvc.yaml is the only graph."""

import importlib.util
from pathlib import Path

import pytest

from convrec.pipeline.commands.stage import STAGES
from convrec.project.code import PACKAGE, stage_code
from convrec.project.config.params import Params
from convrec.project.yaml import read_yaml
from tasks.code_deps import with_code_deps
from tasks.dvc_stage import stages as graph_stages

GRAPH = read_yaml(Path("dvc.yaml"))["stages"]


def test_names_agree():
    assert (
        set(GRAPH)
        == set(STAGES)
        == set(Params.model_fields) - {"common"}
        == set(read_yaml(Path("params.yaml"))) - {"common"}
    )
    for stage in STAGES:
        assert importlib.util.find_spec(f"convrec.pipeline.stages.{stage}")
        assert GRAPH[stage]["cmd"] == f"exec convrec run {stage}"


def test_the_deps_on_code_are_the_modules_that_a_stage_imports():
    text = Path("dvc.yaml").read_text()
    assert with_code_deps(text) == text, "run `make code-deps`"


@pytest.mark.parametrize(
    ("file", "stages"),
    [
        ("data/sources/reddit_movie.py", {"data"}),
        ("data/titles.py", set(STAGES)),
        ("serving/app/server.py", set()),
        ("serving/recommender.py", set()),
        ("tracking/run.py", set()),
        ("training/sft.py", {"base_model", "sft"}),
        ("training/embedded.py", {"base_model"}),
        ("generation/prompts.py", {"sft", "rank_grpo", "evaluate"}),
        ("rl/loss.py", {"rank_grpo"}),
        ("evaluation/metrics.py", {"evaluate", "report"}),
        ("evaluation/style.css", {"report"}),
    ],
)
def test_an_edited_file_makes_the_stages_stale_that_use_it(file, stages):
    path = PACKAGE / file
    assert path.is_file()
    assert {stage for stage in STAGES if path in stage_code(stage)} == stages


def test_the_flow_reads_its_order_from_the_graph():
    order = [stage.name for stage in graph_stages()]
    assert sorted(order) == sorted(STAGES)
    made = {out: stage for stage in GRAPH for out in GRAPH[stage]["outs"]}
    for stage in order:
        for dep in GRAPH[stage]["deps"]:
            if dep in made:
                assert order.index(made[dep]) < order.index(stage)
    assert {stage.name for stage in graph_stages() if stage.gpu} == {"base_model", "sft", "rank_grpo", "evaluate"}


def test_every_output_is_cached():
    """A plain output with `cache: false` disables DVC's run cache for its stage, which a way back needs."""
    assert all(isinstance(out, str) for stage in GRAPH.values() for out in stage["outs"])


def test_an_edited_metric_retrains_nothing():
    for stage in ("data", "demonstrations", "base_model", "sft", "rank_grpo"):
        assert not any(dep.startswith("src/convrec/evaluation") for dep in GRAPH[stage]["deps"])
