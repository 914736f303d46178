"""The models that `rank_grpo.start` names."""

from pathlib import Path

import pytest

from convrec.data.catalog import Catalog, Item
from convrec.data.schemas import write_catalog
from convrec.generation.line_tokens import item_tokens
from convrec.generation.pretrained import load_tokenizer
from convrec.pipeline.stages.rank_grpo import find_start
from convrec.project.config.params import load_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from tests.registry.registered import make_workspace
from tests.service.recommending import CATALOG, save_model


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


def test_a_start_with_item_tokens_gets_tokens_for_new_items(tmp_path, monkeypatch):
    monkeypatch.chdir(make_workspace(tmp_path))
    start = save_model(tmp_path / "model")
    assert _find(str(start)) == str(start)
    later = Catalog([*CATALOG.items, Item("Barbie", 2023)])
    write_catalog(later, Paths().catalog)
    found = _find(str(start))
    assert found != str(start) and found == _find(str(start))
    assert item_tokens(load_tokenizer(found)).keys() == set(map(str, later.items))
