"""Memory estimated from shapes, and the settings that fit; tests/gpu/test_memory.py has the memory of real steps."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM
from trl.kernels import chunked_logprob

from convrec.config.params import parse_params
from convrec.config.profiles import compose
from convrec.experiments.estimate import estimate_step, model_config
from convrec.experiments.memory import smaller_settings, with_settings
from convrec.experiments.plans import RUNTIME, find_plans
from convrec.hardware.machine import GIB
from tests.experiments.measured import Batch
from tests.project import ROOT, set_params

ROWS = 16


def _config(hidden=64, layers=2, **options):
    sizes = {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return Qwen2Config(vocab_size=1500, **sizes, **heads, tie_word_embeddings=True, **options)


@pytest.fixture
def params():
    return Batch(64, 48, ROWS).params("cpu")


def test_each_setting_changes_its_part(params):
    config = _config()
    count = sum(weight.numel() for weight in Qwen2ForCausalLM(config).parameters())

    def estimate(**settings):
        changed = with_settings(params, {f"rank_grpo.{name}": value for name, value in settings.items()})
        return estimate_step(changed, "rank_grpo", config)

    usual = estimate()
    assert (usual.gradients, usual.optimizer) == (4 * count, 8 * count)
    assert 8 * count <= usual.weights < 8.1 * count, "the policy and the reference, in float32, and a few buffers"
    assert estimate(beta=0.0).weights == usual.weights // 2
    assert 1.7 < estimate(per_device_train_batch_size=2 * ROWS).activations / usual.activations < 2.3
    assert estimate(gradient_checkpointing=True).activations < usual.activations
    adapters = estimate(lora={"r": 2, "lora_alpha": 4, "lora_dropout": 0.0})
    assert adapters.gradients < usual.gradients / 10 and adapters.weights < 0.6 * usual.weights
    shared = {"num_processes": 4}
    assert estimate(launch="configs/accelerate/ddp.yaml", **shared).gradients == 2 * usual.gradients
    two = estimate(launch="configs/accelerate/zero2.yaml", **shared)
    assert (two.weights, two.optimizer) == (usual.weights, usual.optimizer // 4)
    three = estimate(launch="configs/accelerate/zero3.yaml", **shared)
    assert three.weights == usual.weights // 4
    assert estimate(launch="configs/accelerate/fsdp2.yaml", **shared) == three


@pytest.mark.parametrize(("hidden", "layers", "peak"), [(512, 8, 2047), (1024, 12, 6672)])
def test_sft_on_a_gpu_is_estimated_without_copies_of_its_logits(hidden, layers, peak):
    """Peaks of `tests/gpu/test_memory.py`, in MiB, of the allocator of an H100."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": True}
    sizes = {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers}
    config, own = Qwen2Config(vocab_size=32_000, **sizes, **heads), vars(chunked_logprob).copy()
    estimate = estimate_step(Batch(512, 160, 8).params("cuda"), "sft", config)
    assert estimate.tensors / 2**20 == pytest.approx(peak, rel=0.02)
    assert vars(chunked_logprob) == own, "TRL's functions are back in their places"


PUBLISHED = {"qwen2.5-0.5b": 0.49, "llama-3.2-1b": 1.24, "llama-3.2-3b": 3.21}  # billions of parameters


@pytest.mark.parametrize("size", PUBLISHED)
def test_the_published_models_need_no_hub(size):
    params = parse_params(compose(f"reddit-{size}", [], ROOT / "profiles"), size)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config(params, ROOT))
    assert round(sum(weight.numel() for weight in model.parameters()) / 1e9, 2) == PUBLISHED[size]


def _total(params, stage, config):
    estimate = estimate_step(params, stage, config)
    return estimate.tensors + estimate.allocator + RUNTIME


def test_the_largest_micro_batch_that_fits_is_found(params):
    config = _config()
    quarter = {"rank_grpo.per_device_train_batch_size": ROWS // 4, "rank_grpo.gradient_accumulation_steps": 4}
    limit = _total(with_settings(params, quarter), "rank_grpo", config)
    (plan,) = find_plans(params, "rank_grpo", config, limit)
    assert plan.changed == quarter and plan.total == limit and plan.trains_the_same
    (plan,) = find_plans(params, "rank_grpo", config, 100 * GIB)
    assert plan.changed == {}


def test_what_no_micro_batch_makes_fit_is_spread_or_gets_adapters(params):
    """The effective batch stays the same on several GPUs."""
    config = _config(1024, 1)
    params = with_settings(params, {"sft.gradient_accumulation_steps": 8})
    least = {"sft.per_device_train_batch_size": 1, "sft.gradient_checkpointing": True}
    limit = _total(with_settings(params, least), "sft", config) - 2**20
    sharded, adapters = find_plans(params, "sft", config, limit)
    own = with_settings(params, sharded.changed).sft
    assert own.launch == "configs/accelerate/zero3.yaml" and own.num_processes == 2
    assert own.per_device_train_batch_size * own.gradient_accumulation_steps * own.num_processes == ROWS * 8
    assert sharded.trains_the_same and not adapters.trains_the_same
    assert with_settings(params, adapters.changed).sft.lora is not None
    assert max(sharded.total, adapters.total) <= limit
    assert find_plans(params, "sft", config, RUNTIME) == []


@pytest.mark.parametrize("algorithm", ["dpo", "sdpo", "sprec"])
def test_the_micro_batches_of_preference_algorithms_stay_whole_groups(params, algorithm):
    """Their rules for groups, launches and adapters are kept; they always have a reference."""
    config = _config()
    params = with_settings(
        params, {"rank_grpo.algorithm": algorithm, "rank_grpo.beta": 0.0} | {"rank_grpo.constrained": True}
    )
    assert estimate_step(params, "rank_grpo", config).weights > 2 * estimate_step(params, "sft", config).gradients
    plans = find_plans(params, "rank_grpo", config, RUNTIME)
    assert plans == []
    size = params.rank_grpo.per_device_train_batch_size
    while (smaller := smaller_settings(params, "rank_grpo")) is not None:
        params = with_settings(params, smaller)
    assert params.rank_grpo.gradient_checkpointing and params.rank_grpo.per_device_train_batch_size < size


def test_vllm_gets_less_only_if_no_micro_batch_fits(params):
    config = _config()
    sampled = {"rank_grpo.rollouts": "vllm_colocate", "rank_grpo.vllm_gpu_memory_utilization": 0.9}
    params = with_settings(params, sampled)
    least = {"rank_grpo.per_device_train_batch_size": 1, "rank_grpo.gradient_accumulation_steps": ROWS}
    least |= {"rank_grpo.gradient_checkpointing": True}
    limit = int(_total(with_settings(params, least), "rank_grpo", config) / 0.6)
    (plan,) = find_plans(params, "rank_grpo", config, limit)
    assert plan.changed["rank_grpo.vllm_gpu_memory_utilization"] == 0.3 and plan.vllm == int(0.3 * limit)
    (plan,) = find_plans(params, "rank_grpo", config, 100 * limit)
    assert plan.changed == {} and plan.vllm == int(0.9 * 100 * limit)


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name in ("profiles", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    _config(1024, 1).save_pretrained(tmp_path / "model")
    set_params(tmp_path, {"base_model": {"name": "model"}}, "profiles/embedded.yaml")
    monkeypatch.chdir(tmp_path)


def test_a_profile_is_estimated_without_data_and_weights(project, cli):
    asked = cli("preflight", "--profile", "embedded")
    assert asked.status == 0
    assert "model: memory of each GPU in GiB, estimated from shapes" in asked.out
    assert re.search(r"rank_grpo +as set +0\.\d", asked.out) and "--memory GIB" in asked.out
    fits = cli("preflight", "--profile", "embedded", "--memory", "80")
    assert fits.status == 0 and fits.out.endswith("Both trainings fit in 80 GiB.\n")
    refused = cli("preflight", "--profile", "embedded", "--memory", "1.9")
    assert refused.status == 2
    problem, remedy = refused.err.splitlines()
    assert problem.endswith("1.9 GiB on each GPU are too little for sft and rank_grpo")
    assert remedy.startswith("these settings train the same: convrec profile embedded --set sft.per_device")
    assert "--set rank_grpo.per_device" in remedy, "one command for both stages"
    nothing = cli("preflight", "--profile", "embedded", "--memory", "1")
    assert "sft: nothing that was tried fits; lower common.max_prompt_length" in nothing.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no profile 'nothing'"),
        (["embedded-full"], "its vocabulary is built from the data"),
        (["embedded", "--fast"], "leave out --fast"),
    ],
)
def test_what_cannot_be_estimated_is_refused(project, cli, arguments, message):
    if arguments == ["embedded-full"]:
        set_params(Path(), {"base_model": {"name": "embedded"}}, "profiles/embedded.yaml")
    asked = cli("preflight", "--profile", *arguments)
    assert asked.status == 2 and message in asked.err
