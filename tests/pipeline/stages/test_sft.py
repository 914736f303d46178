"""Stage `sft`: what its training is keyed by, and a base model in bfloat16."""

import pandas as pd
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from convrec.data.conversations import write_rows
from convrec.pipeline.stages import sft
from convrec.project.config.params import load_params
from tests.pipeline.sft_project import make_sft_project
from tests.small_project import set_params


def test_a_training_is_keyed_by_both_files_of_demonstrations(tmp_path, monkeypatch):
    """The loss on those of validation is one of its outputs."""
    monkeypatch.chdir(tmp_path)
    paths, params = make_sft_project(tmp_path), load_params()
    keys = {sft.key_of(params, paths).task}
    for name in ("train", "validation"):
        write_rows(pd.DataFrame({"prompt_id": ["p0"]}), paths.demonstration(name))
        keys.add(sft.key_of(params, paths).task)
    assert len(keys) == 3


def test_a_model_in_bfloat16_is_trained_in_float32_and_written_in_bfloat16(tmp_path, monkeypatch, make_store, cli):
    """An update of 1e-6 is too small for a weight near 0.1 in bfloat16; the checkpoint has it, rounded at the end."""
    monkeypatch.chdir(tmp_path)
    paths = make_sft_project(tmp_path)
    make_store(tmp_path)
    set_params(tmp_path, {"sft": {"learning_rate": 1e-6, "validation_prompts": 2}})
    base = paths.model("base")
    AutoModelForCausalLM.from_pretrained(base).to(torch.bfloat16).save_pretrained(base)
    assert cli("run", "sft").status == 0
    before = load_file(base / "model.safetensors")
    trained = load_file(next(tmp_path.glob("checkpoints/sft/*/checkpoint-4/model.safetensors")))
    written = load_file(paths.model("sft") / "model.safetensors")
    assert {value.dtype for value in trained.values()} == {torch.float32}
    name = "model.layers.0.mlp.up_proj.weight"
    assert 0 < (trained[name] - before[name].float()).abs().max() < 1e-5
    for name, value in written.items():
        assert value.dtype == torch.bfloat16 and torch.equal(value, trained[name].to(torch.bfloat16))
