"""Stage `sft`: what is learned, what its training is keyed by, and a base model in bfloat16."""

import pandas as pd
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from convrec.data.catalog import Catalog, Item
from convrec.data.conversations import write_rows
from convrec.pipeline.stages import sft
from convrec.project.config.params import load_params
from tests.pipeline.sft_project import make_sft_project
from tests.rows import make_row
from tests.small_project import ROOT, set_params


def test_a_training_is_keyed_by_all_files_that_it_reads(here):
    paths, params = make_sft_project(here), load_params()
    keys = {sft.key_of(params, paths).task}
    for file in (paths.demonstration("train"), paths.split("train"), paths.split("validation"), paths.catalog):
        write_rows(pd.DataFrame({"prompt_id": ["p0"]}), file)
        keys.add(sft.key_of(params, paths).task)
    assert len(keys) == 5


def test_a_list_begins_with_what_people_liked_and_goes_on_with_the_demonstration(monkeypatch):
    config = load_params(ROOT / "params.yaml").sft
    catalog = Catalog([Item(title, 2000) for title in "ABCDEF"])
    row = {"messages": ["a"], "seen_titles": ["F"]}
    answers = ([("B", 2000), ("Nowhere", 2000)], [("A", 2000), ("F", 2000)])
    train = [make_row("p", liked, **row) for liked in answers]
    train += [make_row("q", [("C", 2000)], messages=["b"]), make_row("r", [("Nowhere", 2000)], messages=["c"])]
    shown = [
        {"prompt_id": "p", "messages": ["a"], "reflect": "C (2000)\nB (2000)\nD (2000)"},
        {"prompt_id": "p", "messages": ["a variant"], "reflect": "E (2000)"},
    ]
    likes, nothing = [("a", [0, 1]), ("a variant", [0, 1]), ("b", [2])], [[], [], []]
    for changes, liked, others in (
        ({"demonstration_weight": 0.0}, likes, nothing),
        ({"demonstration_weight": 0.5}, likes, [[2, 3], [4], []]),
        ({"likes": False, "demonstration_weight": 1.0}, [("a", []), ("a variant", [])], [[2, 1, 3], [4]]),
    ):
        found = sft.lists_to_learn(config.model_copy(update=changes), train, shown, catalog, seed=0)
        if liked == likes:  # and half as many requests, for films of the 2000s
            assert (found.pop()["liked"], len(found)) == ([0, 1, 2, 3, 4, 5], 3)
        assert [(row["messages"][0], row["liked"]) for row in found] == liked
        assert [row["others"] for row in found] == others
    monkeypatch.setattr(sft, "MOST_LISTS", 2)  # those with a demonstration first
    found = sft.lists_to_learn(config, train, shown, catalog, seed=0)
    assert [(row["messages"][0], row["liked"]) for row in found[:-1]] == likes[:2]


def test_a_model_in_bfloat16_is_trained_in_float32_and_written_in_bfloat16(here, make_store, cli):
    """An update of 1e-6 is too small for a weight near 0.1 in bfloat16; the checkpoint has it, rounded at the end."""
    paths = make_sft_project(here)
    make_store(here)
    set_params(here, {"sft": {"learning_rate": 1e-6}})
    base = paths.model("base")
    AutoModelForCausalLM.from_pretrained(base).to(torch.bfloat16).save_pretrained(base)
    assert cli("run", "sft").status == 0
    before = load_file(base / "model.safetensors")
    trained = load_file(next(here.glob("checkpoints/sft/*/checkpoint-4/model.safetensors")))
    written = load_file(paths.model("sft") / "model.safetensors")
    assert {value.dtype for value in trained.values()} == {torch.float32}
    name = "model.layers.0.mlp.up_proj.weight"
    assert 0 < (trained[name] - before[name].float()).abs().max() < 1e-5
    for name, value in written.items():
        assert value.dtype == torch.bfloat16 and torch.equal(value, trained[name].to(torch.bfloat16))
