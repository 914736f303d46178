import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from convrec.project.errors import InputError
from convrec.training.start import Start, resolve_start

SFT = Path("models") / "sft"
COMPLETE = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors")


def _folder(root: Path, *names: str, step: int | None = None) -> Path:
    for name in names:
        if name.endswith(".safetensors"):
            save_file({"weight": torch.zeros(8)}, root / name)
        else:
            torch.save({}, root / name)
    if step is not None:
        (root / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return root


def test_the_stage_s_model_and_a_name_of_the_hub():
    assert resolve_start("sft", SFT, 10, pytest.fail) == Start(str(SFT))
    assert resolve_start("Qwen/Qwen2.5-0.5B-Instruct", SFT, 10, pytest.fail) == Start("Qwen/Qwen2.5-0.5B-Instruct")


def test_a_foreign_folder_starts_at_step_0_and_says_so(tmp_path, caplog):
    folder = _folder(tmp_path, "config.json", "tokenizer_config.json", "model.safetensors")
    with caplog.at_level("INFO"):
        assert resolve_start(str(folder), SFT, 10, pytest.fail) == Start(str(folder))
    assert "a new optimiser and schedule" in caplog.text


def test_a_checkpoint_is_continued_with_the_sft_model_as_reference(tmp_path):
    folder = _folder(tmp_path, *COMPLETE, step=4)
    assert resolve_start(str(folder), SFT, 10, pytest.fail) == Start(str(SFT), folder)


@pytest.mark.parametrize("name", ["optimizer.pt", "model.safetensors"])
def test_a_checkpoint_with_a_file_cut_short_is_refused(tmp_path, name):
    folder = _folder(tmp_path, *COMPLETE, step=4)
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    with pytest.raises(InputError, match=f"is damaged: {name} cannot be read: .*; name an older checkpoint"):
        resolve_start(str(folder), SFT, 10, pytest.fail)


@pytest.mark.parametrize(
    ("names", "step", "message"),
    [
        (("config.json",), None, "lacks tokenizer_config.json, \\*.safetensors"),
        (("optimizer.pt", "rng_state.pth", "model.safetensors"), 4, "lacks scheduler.pt"),
        (
            ("optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors"),
            10,
            "at step 10; raise rank_grpo.max_steps = 10",
        ),
    ],
)
def test_a_folder_that_cannot_serve_is_refused(tmp_path, names, step, message):
    with pytest.raises(InputError, match=message):
        resolve_start(str(_folder(tmp_path, *names, step=step)), SFT, 10, pytest.fail)


def test_a_folder_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="no such folder"):
        resolve_start("./nowhere", SFT, None, pytest.fail)
