"""The models that `rank_grpo.start` names."""

from pathlib import Path

import pytest

from convrec.pipeline.stages.rank_grpo import find_start
from convrec.project.config.params import load_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from tests.service.recommending import save_model


def _find(start: str) -> str:
    params = load_params()
    rank_grpo = params.rank_grpo.model_copy(update={"start": start})
    return find_start(params.model_copy(update={"rank_grpo": rank_grpo}), Paths())


def test_the_stage_s_model_a_name_of_the_hub_and_a_folder(tmp_path, caplog):
    caplog.set_level("INFO")
    assert _find("sft") == str(Path("models", "sft"))
    assert not caplog.messages
    folder = str(save_model(tmp_path / "model"))
    for start in ("Qwen/Qwen2.5-0.5B-Instruct", folder):
        assert _find(start) == start
        assert caplog.messages[-1].startswith(f"starting from the weights of {start}, with a new optimizer")


@pytest.mark.parametrize(
    ("start", "message"), [("{}", "lacks config.json"), ("./nowhere", "no such folder"), ("{}/x", "no such folder")]
)
def test_a_folder_that_cannot_serve_is_refused(tmp_path, start, message):
    with pytest.raises(InputError, match=message):
        _find(start.format(tmp_path))
