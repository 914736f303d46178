"""The models that `rank_grpo.start` names."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from accelerate import PartialState
from huggingface_hub import constants

from convrec.data.catalog import Catalog, Item
from convrec.data.schemas import write_catalog
from convrec.generation.line_tokens import item_tokens
from convrec.generation.pretrained import load_model, load_tokenizer
from convrec.pipeline.memory import with_settings
from convrec.pipeline.stages import base_model, rank_grpo
from convrec.pipeline.stages.rank_grpo import find_start
from convrec.project.config.params import load_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.registry.tracking import SilentRun
from tests.local_hub import LocalHub
from tests.registry.registered import make_workspace
from tests.service.recommending import CATALOG, save_model


def _find(start: str) -> str:
    return find_start(with_settings(load_params(), {"rank_grpo.start": start}), Paths())


def test_the_stage_s_model_and_a_folder(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(make_workspace(tmp_path))
    write_catalog(CATALOG, Paths().catalog)
    caplog.set_level("INFO")
    assert _find("sft") == str(Path("models", "sft"))
    assert not caplog.messages
    folder = str(save_model(tmp_path / "model"))
    assert _find(folder) == folder
    assert caplog.messages[-1].startswith(f"starting from the weights of {folder}, with a new optimizer")


@pytest.mark.parametrize(
    ("start", "message"), [("{}", "lacks config.json"), ("./nowhere", "no such folder"), ("{}/x", "no such folder")]
)
def test_a_folder_that_cannot_serve_is_refused(tmp_path, start, message):
    with pytest.raises(InputError, match=message):
        _find(start.format(tmp_path))


@pytest.fixture
def later(tmp_path, monkeypatch) -> set[str]:
    """A project whose catalog has an item that `save_model` does not know, and the lines of the catalog."""
    monkeypatch.chdir(make_workspace(tmp_path))
    catalog = Catalog([*CATALOG.items, Item("Barbie", 2023)])
    write_catalog(catalog, Paths().catalog)
    return set(map(str, catalog.items))


def test_a_catalog_of_more_items_than_tokens_suit_is_refused_at_once(later, monkeypatch):
    monkeypatch.setattr(base_model, "MOST_ITEM_TOKENS", 2)
    params = with_settings(load_params(), {"common.item_tokens": True})
    with pytest.raises(InputError, match=f"the catalog has {len(later)} items, and item tokens suit 2 at most"):
        base_model.run(params, Paths(), SilentRun())


def test_a_start_with_item_tokens_gets_tokens_for_new_items_once(later, tmp_path, monkeypatch):
    """Once for all processes, before Accelerate knows whether they are to use the CPU."""
    start = str(save_model(tmp_path / "model"))
    written, write = [], rank_grpo.write_with_new_items
    monkeypatch.setattr(rank_grpo, "write_with_new_items", lambda *given: written.append(write(*given)))
    monkeypatch.setattr(PartialState, "_shared_state", {})
    with ThreadPoolExecutor(2) as both:
        found, other = both.map(_find, [start, start])
    assert found == other != start and len(written) == 1
    assert not PartialState._shared_state
    assert item_tokens(load_tokenizer(found)).keys() == later


def test_a_start_of_the_hub_gets_tokens_for_new_items(later, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    repository = save_model(tmp_path / "model", max_shard_size="20KB")
    with LocalHub({"models/owner/items": repository}) as hub:
        hub.stand_in(monkeypatch)
        found = _find("owner/items")
    assert item_tokens(load_tokenizer(found)).keys() == later
    assert load_model(found).config.vocab_size == len(load_tokenizer(found))
