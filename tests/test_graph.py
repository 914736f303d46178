"""Stage = section of params.yaml = module in stages/ = command, and dvc.yaml is the only graph."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from convrec.cli import _parser, main
from convrec.commands.stage import STAGES
from convrec.config.params import Params
from convrec.files.code import PACKAGE, stage_code
from convrec.files.yaml import read_yaml
from tasks.code_deps import with_code_deps
from tasks.dvc_stage import stages as graph_stages
from tests.project import make_project

GRAPH = read_yaml(Path("dvc.yaml"))["stages"]


def test_names_agree():
    assert (
        set(GRAPH)
        == set(STAGES)
        == set(Params.model_fields) - {"common"}
        == set(read_yaml(Path("params.yaml"))) - {"common"}
    )
    for stage in STAGES:
        assert importlib.util.find_spec(f"convrec.stages.{stage}")
        assert GRAPH[stage]["cmd"] == f"exec convrec {stage}"


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


def test_an_edited_metric_retrains_nothing():
    for stage in ("data", "demonstrations", "base_model", "sft", "rank_grpo"):
        assert not any(dep.startswith("src/convrec/evaluation") for dep in GRAPH[stage]["deps"])


@pytest.mark.parametrize(
    ("stage", "missing"),
    [("sft", "data/demonstrations, models/base"), ("demonstrations", "data/processed")],
)
def test_a_stage_whose_inputs_are_not_made_says_what_makes_them(tmp_path, monkeypatch, capsys, stage, missing):
    monkeypatch.chdir(make_project(tmp_path / "project"))
    with pytest.raises(SystemExit) as ended:
        main([stage])
    message = (
        f"convrec {stage}: {missing}: not made yet; run `dvc repro {stage}`, which first makes what the stage reads"
    )
    assert ended.value.code == 2 and capsys.readouterr().err == f"{message}\n"
    assert not Path("mlruns").exists()


def test_the_command_line_explains_itself():
    result = subprocess.run([sys.executable, "-m", "convrec.cli", "--help"], capture_output=True, text=True, check=True)
    assert all(stage in result.stdout for stage in STAGES)


def test_every_command_is_in_one_group_of_the_help(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^  ([a-z][a-z_-]+) {2,}", capsys.readouterr().out, re.MULTILINE)
    commands = next(iter(_parser()._subparsers._group_actions)).choices
    assert sorted(listed) == sorted(commands)


def test_convrec_alone_says_where_to_begin(capsys):
    main([])
    assert "python -m flows.train" in capsys.readouterr().out


def test_a_mistyped_command_is_answered_with_the_nearest(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["recomend"])
    message = "convrec: 'recomend' is not known; did you mean 'recommend'; `convrec --help` shows what can be given\n"
    assert ended.value.code == 2 and capsys.readouterr().err == message
