"""`make bench-gpu` with the smallest size."""

import json

import pytest

from benchmarks import gpu
from tests.small_project import ROOT


@pytest.mark.slow
def test_it_writes_every_figure_and_prints_a_table(tmp_path, monkeypatch, capsys, device):
    monkeypatch.chdir(ROOT)
    file = tmp_path / "gpu.json"
    gpu.main(["--size", "tiny", "--out", str(file), "--seed", "3"])
    found = json.loads(file.read_text())
    assert found["seed"] == 3 and found["size"] == "tiny" and found["machine"] and found["versions"]["torch"]
    assert found["dtype"] == ("bfloat16" if device == "cuda" else "float32") and found["weights"] > 1e6
    ratios = [found["step"]["time_ratio"], found["step"]["memory_ratio"], found["constraint"]["share"]]
    assert all(0 < ratio < 2 for ratio in ratios)
    passes = found["forward_backward"]
    assert found["rollouts"]["transformers"] > 0 and passes["tokens_per_second"] > 0
    assert passes["flops_per_token"] > 6e6 and (device == "cuda" or passes["mfu_percent"] is None)
    lines = capsys.readouterr().out.splitlines()
    table = [line for line in lines if line.startswith("| ")]
    assert len(table) == 7 and all(line.endswith(" |") and line.count("|") == 3 for line in table)
    assert lines[-1] == str(file)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--size", "tiny", "--peak-tflops", "0"], "must be above 0"), (["--size", "2b"], "invalid choice: '2b'")],
)
def test_wrong_arguments_are_refused(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        gpu.main(arguments)
    assert message in capsys.readouterr().err
