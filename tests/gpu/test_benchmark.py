"""`make bench-gpu` with the smallest size."""

import json

import pytest

from benchmarks import gpu
from tests.small_project import ROOT


@pytest.mark.slow
def test_it_writes_every_figure_and_prints_tables(tmp_path, monkeypatch, capsys, device):
    monkeypatch.chdir(ROOT)
    file = tmp_path / "gpu.json"
    gpu.main(["--size", "tiny", "--out", str(file), "--seed", "3"])
    found = json.loads(file.read_text())
    assert found["seed"] == 3 and found["size"] == "tiny" and found["machine"] and found["versions"]["torch"]
    assert found["dtype"] == ("bfloat16" if device == "cuda" else "float32") and found["weights"] > 1e6
    for own in found["step"]["tiny"].values():
        assert own["seconds"]["step"] > own["seconds"]["backward"] > 0 and own["peak_bytes"] > 0
        assert device == "cuda" or own["mfu_percent"] is None
    assert found["rollouts"]["free"] > 0 and found["rollouts"]["16 lists"]["tokens"] > 0
    assert 0 < found["constraint"]["share"] < 1 and found["constraint"]["guided, by jumps"] > 0
    assert found["head"]["constrained"] > 0
    text = capsys.readouterr().out
    assert text.count("| TRL-recomputed |") == 1 and text.splitlines()[-1] == str(file)
    gpu.main(["--size", "tiny", "--out", str(file), "--parts", "constraint"])
    again = json.loads(file.read_text())
    assert again["step"] == found["step"] and again["constraint"] != found["constraint"]
