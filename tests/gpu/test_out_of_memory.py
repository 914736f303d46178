"""A stage that runs out of memory goes on with a smaller micro-batch: really on a GPU, simulated on a CPU."""

import shutil
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load_file

from convrec.pipeline.commands import stage
from convrec.project.config.params import load_params
from convrec.project.device import release_memory
from convrec.project.paths import CHECKPOINTS
from convrec.registry.tracking import SilentRun
from tests.generation.small import sizes
from tests.pipeline.sft_project import lose_memory, make_sft_project

SHARE = 0.7  # of the memory that the whole micro-batch takes; half of one takes little more than 0.5


def _weights(folder):
    return torch.cat([value.flatten().float() for _, value in sorted(load_file(folder / "model.safetensors").items())])


@pytest.fixture
def whole_gpu() -> Iterator[None]:
    """Gives the memory back that a test took from this process."""
    yield
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_training_goes_on_with_smaller_micro_batches_and_same_updates(tmp_path, monkeypatch, caplog, device, whole_gpu):
    """Of a GPU's memory the process gets a share in which the micro-batch of the parameters does not fit."""
    monkeypatch.chdir(tmp_path)
    # Deep and narrow: activations of .7 GiB, weights and their optimizer a tenth of that.
    large = {"words": 400, "model": sizes(128, 384, layers=16, heads=4)} if device == "cuda" else {}
    paths = make_sft_project(tmp_path, device=device, **large)
    params = load_params()
    release_memory()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    stage._work("sft", params, paths, SilentRun())
    assert "out of memory" not in caplog.text
    start, expected = _weights(paths.model("base")), _weights(paths.model("sft"))
    for folder in (paths.root / CHECKPOINTS, paths.model("sft")):
        shutil.rmtree(folder)
    if device == "cuda":
        size = torch.cuda.get_device_properties(0).total_memory
        share = SHARE * torch.cuda.max_memory_reserved() / size
        release_memory()
        torch.cuda.set_per_process_memory_fraction(share)
    else:
        steps = lose_memory(monkeypatch, 4)
    stage._work("sft", params, paths, SilentRun())
    assert "out of memory (CUDA out of memory" in caplog.text
    assert "going on with sft.per_device_train_batch_size: 4, sft.gradient_accumulation_steps: 2" in caplog.text
    assert device == "cuda" or steps == [8, 8, 4, 4, 4, 4], "from the checkpoint of step 2 on"
    found = _weights(paths.model("sft"))
    assert (found - expected).norm() < 0.01 * (expected - start).norm()
