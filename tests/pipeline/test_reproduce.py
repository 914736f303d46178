"""`convrec reproduce` against a local stand-in of the hub, to the table beside the published figures."""

import json

import pytest
from ruamel.yaml import YAML

from tests.local_hub import COMMIT, MODEL, LocalHub, write_repositories
from tests.small_project import make_project, run_in

ON_A_CPU = (
    "common.device=cpu",
    "base_model.dtype=float32",
    "demonstrations.embedder.name=tfidf",
    "rank_grpo.rollouts=transformers",
    "rank_grpo.max_steps=2",
    "common.max_completion_length=200",
    "rank_grpo.per_device_train_batch_size=16",
    "rank_grpo.gradient_accumulation_steps=1",
    "sft.per_device_train_batch_size=8",
    "sft.gradient_accumulation_steps=2",
    "sft.gradient_checkpointing=false",
    "rank_grpo.gradient_checkpointing=false",
    "sft.validation_prompts=8",
    "sft.num_train_epochs=2",
    "evaluate.max_prompts=24",
    "evaluate.constrained=false",
)


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with LocalHub(write_repositories(tmp_path_factory.mktemp("hub"))) as server:
        yield server


@pytest.fixture
def project(tmp_path, hub):
    def run(*command, check=True):
        return run_in(made, "env", f"HF_ENDPOINT={hub.address}", f"HF_HOME={tmp_path / 'cache'}", *command, check=check)

    made = make_project(tmp_path / "project")
    return made, run


def _reproduce(*more):
    settings = (f"--set={setting}" for setting in (*ON_A_CPU, *more))
    return "convrec", "reproduce", "qwen2.5-0.5b", "--scale", "0.1", *settings


@pytest.mark.slow
def test_a_trial_of_the_published_experiment_ends_with_the_table(project):
    folder, run = project
    prepared = run(*_reproduce()).stdout
    assert f"license of {MODEL}: apache-2.0" in prepared and f"at commit {COMMIT}: " in prepared
    assert "a trial of 10.0%" in prepared
    params = YAML(typ="safe").load(folder / "params.yaml")
    assert params["base_model"]["name"] == "data/raw/Qwen2.5-0.5B-Instruct"
    assert (params["demonstrations"]["train_share"], params["sft"]["checkpoint_step"]) == (0.025, 150)
    assert (params["data"]["source"], params["demonstrations"]["teacher"]["kind"]) == ("reddit_movie", "similarity")
    locked = json.loads((folder / "data" / "raw" / "Qwen2.5-0.5B-Instruct.lock.json").read_text())
    assert locked["commit"] == COMMIT

    run("dvc", "repro", "evaluate")
    shown = run("convrec", "results", "--published").stdout
    assert "0.2047" in shown and "0.0704" in shown and "Settings that differ from the published ones:" in shown
    assert "- rank_grpo.num_train_epochs = 0.2; published settings: 2.0" in shown
    table = (folder / "comparison" / "published.md").read_text().splitlines()
    cells = {row.split(" | ")[0].strip("| "): row.split(" | ") for row in table if row.startswith("| ")}
    assert cells["Rank-GRPO"][-2:] == ["0.2047", "0.1079 |"] and "too few persons" in cells["Rank-GRPO"][1]
    assert cells["GRPO"][1:5] == ["", "", "", ""]
    assert "already" in run(*_reproduce()).stdout  # nothing is fetched or changed again


def test_mistakes_are_named_and_params_stay(project):
    folder, run = project
    before = (folder / "params.yaml").read_bytes()
    for command, message in {
        "reproduce gpt-2": "MODEL 'gpt-2': no published figures; give one of qwen2.5-0.5b",
        "reproduce qwen2.5-0.5b --scale 0": 'Invalid value "0.0" for --scale. Must be > 0.',
        "reproduce qwen2.5-0.5b --data none": "DATA none: no such folder",
        "reproduce qwen2.5-0.5b --set sft.speed=1": "unknown parameter 'speed'",
        "reproduce llama-3.2-1b": "model meta-llama/Llama-3.2-1B-Instruct: not found on http",
        "results --published": "common.profile = 'embedded' has no published figures",
    }.items():
        result = run("convrec", *command.split(), check=False)
        assert result.returncode == 2 and message in result.stderr, result.stderr
    assert (folder / "params.yaml").read_bytes() == before
