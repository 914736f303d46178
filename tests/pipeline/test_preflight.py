"""Preflight: its checks of the machine, the search for settings that fit, and stages that run out of memory."""

import json

import pandas as pd
import pytest
import torch

from convrec.classical.guidance import Guidance
from convrec.data.catalog import Catalog
from convrec.data.conversations import read_rows, write_rows
from convrec.pipeline import preflight as module
from convrec.pipeline.memory import smaller_settings, with_settings
from convrec.pipeline.preflight import require_machine
from convrec.pipeline.stages import evidence, guidance
from convrec.pipeline.trial import STEPS, ScratchProject, Trial, run_trials, trial_params
from convrec.project.config.params import load_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.registry.tracking import SilentRun
from tests.pipeline.sft_project import lose_memory, make_sft_project
from tests.registry.registered import make_workspace
from tests.rows import make_row
from tests.service.recommending import save_model
from tests.small_project import ROOT, SHRUNK, set_params


@pytest.fixture
def params():
    return load_params(ROOT / "params.yaml")


@pytest.fixture
def problems(tmp_path, params, monkeypatch):
    """Return the remedies of all checks that do not hold, by name; the libraries of the extra `gpu` are missing."""
    monkeypatch.setattr(module, "CHECKS", [check for check in module.CHECKS if check is not module._tracking])
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: None)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def checked(settings: dict, gpus: int = 0) -> dict[str, str]:
        monkeypatch.setattr(module, "gpu_names", lambda: ["H100"] * gpus)
        changed = with_settings(params, settings)
        return {
            check.name: check.remedy
            for make in module.CHECKS
            for check in make(changed, Paths(tmp_path))
            if check.remedy
        }

    return checked


ZERO3 = {"sft.launch": "configs/accelerate/zero3.yaml", "sft.num_processes": 4}
DDP = {"rank_grpo.launch": "configs/accelerate/ddp.yaml", "rank_grpo.num_processes": 4}


@pytest.mark.parametrize(
    ("settings", "gpus", "name", "remedy"),
    [
        ({"common.device": "cuda"}, 0, "GPUs", "set common.device to auto"),
        ({"data.source": "redial", "data.path": "no"}, 0, "data", "put the source's files there"),
        ({"data.source": ["synthetic", "feedback"]}, 0, "data", "convrec feedback export"),
        ({"evaluate.engine": "vllm"}, 0, "vLLM", "pip install -e '.[gpu]'"),
        (ZERO3, 0, "DeepSpeed", "pip install -e '.[gpu]'"),
        ({"demonstrations.embedder.name": "."}, 0, "sentence_transformers", "pip install -e '.[embedders]'"),
        (DDP, 2, "rank_grpo.launch", "set rank_grpo.num_processes to 2 or fewer"),
    ],
)
def test_what_a_run_lacks_is_named_with_its_remedy(problems, settings, gpus, name, remedy):
    found = problems(settings, gpus)
    assert list(found) == [name] and remedy in found[name]


def test_nothing_is_missing_for_the_demo_and_for_a_launch_on_two_nodes(problems, monkeypatch):
    assert problems({}) == {}
    monkeypatch.setenv("NNODES", "2")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    assert problems(DDP, 2) == {}, "two on each of two nodes"


@pytest.mark.usefixtures("problems")
def test_a_flow_requires_libraries_before_its_first_stage(params):
    require_machine(params)
    with pytest.raises(InputError, match=r"DeepSpeed: not installed; pip install -e"):
        require_machine(with_settings(params, ZERO3))


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(make_workspace(tmp_path))
    set_params(tmp_path, SHRUNK | {"common": {"device": "cpu", "list_length": 4, "cutoffs": [2, 4]}})
    return load_params(), Paths()


def _trial(stage, status=0, exceeded=False, output=""):
    return Trial(stage, status, 1.0, 2**30, (), 0.5, exceeded, output)


@pytest.mark.parametrize(
    ("fitting", "expected"),
    [
        (16, {}),
        (4, {"rank_grpo.per_device_train_batch_size": 4, "rank_grpo.gradient_accumulation_steps": 4}),
        (0, None),
    ],
)
def test_the_micro_batch_is_halved_until_it_fits(project, monkeypatch, fitting, expected):
    """The effective batch stays the same; with nothing left to change, the run is refused."""
    tried = []

    def run(scratch, stage, limit):
        assert limit == 1000
        if stage == "base_model":
            save_model(scratch.own.model("base"), 0)
        if stage != "rank_grpo":
            return _trial(stage)
        config = scratch.params.rank_grpo
        tried.append((config.per_device_train_batch_size, config.gradient_accumulation_steps))
        assert json.loads((scratch.own.root / "params.yaml").read_text()) == scratch.params.model_dump()
        exceeded = config.per_device_train_batch_size > fitting
        return _trial(stage, -9 if exceeded else 0, exceeded)

    monkeypatch.setattr(ScratchProject, "run", run)
    params, paths = project
    if expected is None:
        with pytest.raises(InputError, match="rank_grpo: memory does not suffice .* with any batch size"):
            list(run_trials(params, paths, 1000))
        assert len(tried) == 6, "16, 8, 4, 2, 1, and with gradient checkpointing"
    else:
        last = {trial.stage: trial for trial in run_trials(params, paths, 1000)}
        sft, rank_grpo = last["sft"], last["rank_grpo"]
        assert rank_grpo.changed == expected and sft.changed == {}
        assert rank_grpo.whole_seconds == 0.5 * params.rank_grpo.max_steps
    assert {size * steps for size, steps in tried} == {16}
    assert not list(paths.root.rglob("preflight-*")), "the scratch project is gone"


@pytest.mark.parametrize(
    ("unfit", "remedy"), [("evidence", "; give the machine more$"), ("guidance", r" or set guidance\.fit_prompts to 0")]
)
def test_a_fit_that_memory_does_not_suffice_for_says_what_to_change(project, monkeypatch, unfit, remedy):
    def run(scratch, stage, limit):
        if stage == "base_model":
            save_model(scratch.own.model("base"), 0)
        return _trial(stage, -9 if stage == unfit else 0, stage == unfit)

    monkeypatch.setattr(ScratchProject, "run", run)
    with pytest.raises(InputError, match=f"{unfit}: memory does not suffice .*{remedy}"):
        list(run_trials(*project, 1000))


def test_a_stage_s_own_error_is_not_taken_for_a_lack_of_memory(project, monkeypatch):
    monkeypatch.setattr(ScratchProject, "run", lambda _, stage, limit: _trial(stage, 2, output="x\nsft.x = 1: no\n"))
    with pytest.raises(InputError, match="^base_model: sft.x = 1: no$"):
        list(run_trials(*project, None))


def test_the_scratch_project_finds_models_in_folders(params, here):
    (here / "data" / "own").mkdir(parents=True)
    found = trial_params(with_settings(params, {"base_model.name": "data/own"}))
    assert found.base_model.name == str(here / "data" / "own")
    assert trial_params(params).base_model.name == "embedded"


def test_the_scratch_project_has_the_longest_rows(project):
    params, paths = project
    rows = [make_row(f"p{n}", [("Heat", 1995)], "word " * (n + 1), conversation_id=str(n)) for n in range(300)]
    for split in ("train", "validation", "test"):
        write_rows(pd.DataFrame(rows), paths.split(split))
    scratch = ScratchProject(params, paths, paths.root / "scratch")
    save_model(scratch.own.model("base"), 0)
    scratch.make_rows_longest()
    whole = [row["prompt_id"] for row in read_rows(scratch.own.split("train"))]
    held_out = [row["prompt_id"] for row in read_rows(scratch.own.split("validation"))]
    longest = [f"p{299 - n}" for n in range(300)]
    assert len(held_out) == params.evaluate.batch_size and whole == longest + held_out
    scratch.shorten_training()
    prompts = STEPS * params.rank_grpo.per_device_train_batch_size // params.rank_grpo.num_generations
    sequences = STEPS * params.sft.per_device_train_batch_size * params.sft.gradient_accumulation_steps
    assert len(read_rows(scratch.own.demonstration("train"))) == sequences
    train = [row["prompt_id"] for row in read_rows(scratch.own.split("train"))]
    assert train == longest[: max(prompts, sequences)]
    assert len(read_rows(paths.split("train"))) == 300, "the project's own rows stay"
    lists = {row[params.sft.lists] for row in read_rows(scratch.own.demonstration("train"))}
    assert len(lists) == 1 and len(lists.pop().split("\n")) == params.common.list_length


def test_the_evidence_of_a_trial_gets_weights_whatever_the_model(project):
    """Later trials are guided, also where held-out users like what nobody likes in training."""
    params, paths = project
    rows = [make_row(f"t{n}", [("Heat", 1975)], f"film {n}", conversation_id=f"t{n}") for n in range(9)]
    write_rows(pd.DataFrame(rows), paths.split("train"))
    scratch = ScratchProject(params, paths, paths.root / "scratch")
    for name in ("base", "sft"):
        save_model(scratch.own.model(name), 0)
    scratch.make_rows_longest()
    for stage in (evidence, guidance):
        stage.run(scratch.params, scratch.own, SilentRun())
    scratch.shorten_training()
    found = Guidance.load(scratch.own.guidance, Catalog.read(paths.catalog))
    assert found is not None and any(found.weights.values())
    assert len(read_rows(scratch.own.split("train"))) == 9


@pytest.fixture
def sft(here, make_store):
    make_sft_project(here)
    make_store(here)


def test_a_training_without_memory_for_any_batch_says_what_to_change(sft, monkeypatch, cli):
    lose_memory(monkeypatch, 0)
    ended = cli("run", "sft")
    assert ended.status == 2
    assert "sft: out of memory (CUDA out of memory. Tried to allocate 2.00 GiB); lower common.max_prompt" in ended.err


def test_a_process_of_a_launch_that_runs_out_of_memory_ends_with_the_settings_to_change(sft, monkeypatch, cli):
    steps = lose_memory(monkeypatch, 4)
    monkeypatch.setenv("RANK", "0")
    ended = cli("run", "sft")
    assert ended.status == 2 and steps == [8, 8]
    assert (
        "set sft.per_device_train_batch_size to 4 and sft.gradient_accumulation_steps to 2, which trains the same; "
        "`convrec preflight` finds settings that fit" in ended.err
    )


@pytest.mark.parametrize(
    ("stage", "settings", "size"),
    [
        ("sft", {}, 15),
        *(("rank_grpo", {"algorithm": "dpo", "num_generations": number}, 32) for number in (2, 4)),
    ],
)
def test_micro_batches_shrink_by_divisors_and_stay_whole_groups(params, stage, settings, size):
    settings = settings | {"per_device_train_batch_size": size, "gradient_accumulation_steps": 1}
    params = with_settings(params, {f"{stage}.{name}": value for name, value in settings.items()})
    sizes = []
    while (smaller := smaller_settings(params, stage)) is not None:
        params = with_settings(params, smaller)  # raises an error for a group that is not whole
        config = getattr(params, stage)
        assert config.per_device_train_batch_size * config.gradient_accumulation_steps == size
        sizes.append(config.per_device_train_batch_size)
    assert config.gradient_checkpointing and sizes == sorted(sizes, reverse=True) and sizes[0] < size
    assert stage != "sft" or sizes == [5, 1, 1], "the last by computing activations again"


def test_evaluate_without_memory_goes_on_with_smaller_batches(tmp_path, monkeypatch, make_store, cli):
    monkeypatch.chdir(make_workspace(tmp_path))
    make_store(tmp_path)
    set_params(tmp_path, {"evaluate": {"batch_size": 16}})
    for name in ("base", "evidence", "guidance", "sft", "rank_grpo"):
        Paths().model(name).mkdir(parents=True)
    tried = []

    def run(params, paths, record):
        tried.append(params.evaluate.batch_size)
        if params.evaluate.batch_size > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("convrec.pipeline.stages.evaluate.run", run)
    assert cli("run", "evaluate").status == 0 and tried == [16, 8, 4]
