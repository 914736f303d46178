import sys

import pandas as pd
import pytest

from convrec.data.catalog import Catalog
from convrec.data.conversations import read_rows, truths
from convrec.data.parsing import parse_list
from tests.small_project import make_stages, run_in


@pytest.mark.slow
def test_the_ground_truth_comes_first_in_training_demonstrations_alone(make_store, tmp_path):
    own = {"demonstrations": {"until": None, "ground_truth_first": True, "variants": 3}, "sft": {"lists": "adjust"}}
    make_stages(tmp_path, own)
    make_store(tmp_path)
    for stage in ("data", "demonstrations"):
        run_in(tmp_path, sys.executable, "-m", "convrec.cli", "run", stage)
    catalog = Catalog.read(tmp_path / "data/processed/catalog.parquet")
    train = pd.read_parquet(tmp_path / "data/demonstrations/train.parquet")
    own, variants = train[~train["prompt_id"].duplicated()], train[train["prompt_id"].duplicated()]
    assert 0 < len(variants) <= 3 * len(own) and not variants["held_out"].any() and own["held_out"].any()
    assert not set(variants["prompt_id"]) & set(own.loc[own["held_out"], "prompt_id"])
    begin = {}
    for split in ("train", "validation"):
        liked = {}
        for row in read_rows(tmp_path / f"data/processed/{split}.parquet"):
            found = {catalog.find(truth.title, truth.year) for truth in truths(row)}
            liked.setdefault(row["prompt_id"], set()).update(found - {None})
        frame = pd.read_parquet(tmp_path / f"data/demonstrations/{split}.parquet")
        begin[split] = []
        for prompt, text in zip(frame["prompt_id"], frame["demonstration"], strict=True):
            listed = [catalog.find(entry.title, entry.year) for entry in parse_list(text, catalog)]
            number = min(len(liked[prompt]), len(listed))
            begin[split].append(set(listed[:number]) <= liked[prompt])
    assert len(begin["train"]) > 20 and all(begin["train"])
    assert not all(begin["validation"])
