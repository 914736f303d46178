"""Stage `sft` on a base model in bfloat16."""

import pandas as pd
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from convrec.data.conversations import read_rows, write_rows
from convrec.project.paths import Paths
from tests.registry.registered import make_workspace
from tests.service.recommending import TITLES, save_model
from tests.small_project import set_params


def test_a_model_in_bfloat16_is_trained_in_float32_and_written_in_bfloat16(tmp_path, monkeypatch, make_store, cli):
    """An update of 1e-6 is too small for a weight near 0.1 in bfloat16; the checkpoint has it, rounded at the end."""
    monkeypatch.chdir(make_workspace(tmp_path))
    make_store(tmp_path)
    few = {"learning_rate": 1e-6, "num_train_epochs": 1, "save_steps": 1, "validation_prompts": 2}
    set_params(tmp_path, {"sft": few})
    paths = Paths()
    base = paths.model("base")
    save_model(base, 0)
    AutoModelForCausalLM.from_pretrained(base).to(torch.bfloat16).save_pretrained(base)
    frame = pd.DataFrame(read_rows(paths.split("train")))[["prompt_id", "messages"]]
    paths.demonstration("train").parent.mkdir()
    for name in ("train", "validation"):
        write_rows(frame.assign(reflect="\n".join(TITLES[:4])), paths.demonstration(name))  # of the step sft.lists
    assert cli("run", "sft").status == 0
    before = load_file(base / "model.safetensors")
    trained = load_file(next(tmp_path.glob("checkpoints/sft/*/checkpoint-2/model.safetensors")))
    written = load_file(paths.model("sft") / "model.safetensors")
    assert {value.dtype for value in trained.values()} == {torch.float32}
    name = "model.layers.0.mlp.up_proj.weight"
    assert 0 < (trained[name] - before[name].float()).abs().max() < 1e-5
    for name, value in written.items():
        assert value.dtype == torch.bfloat16 and torch.equal(value, trained[name].to(torch.bfloat16))
