import sys

import pandas as pd
import pytest

from tests.small_project import make_stages, run_in


@pytest.mark.slow
def test_prompts_that_are_learned_have_variants(make_store, tmp_path):
    make_stages(tmp_path, {"demonstrations": {"until": None, "variants": 3}})
    make_store(tmp_path)
    for stage in ("data", "evidence", "demonstrations"):
        run_in(tmp_path, sys.executable, "-m", "convrec.cli", "run", stage)
    train = pd.read_parquet(tmp_path / "data/demonstrations/train.parquet")
    own, variants = train[~train["prompt_id"].duplicated()], train[train["prompt_id"].duplicated()]
    assert 0 < len(variants) <= 3 * len(own) and not variants["held_out"].any() and own["held_out"].any()
    assert not set(variants["prompt_id"]) & set(own.loc[own["held_out"], "prompt_id"])
