"""Sources of data read by the real command, and run on to demonstrations."""

import json
import sys

import pandas as pd
import pytest

from tests.data.reddit_movie_sample import write_sample
from tests.project import ROOT, SHRUNK, run_in, set_params

pytestmark = pytest.mark.pipeline


def test_the_raw_reddit_movie_dump_runs_to_demonstrations(tmp_path):
    write_sample(tmp_path / "dump", num_turns=3_000, num_films=120, seed=3)
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    set_params(
        tmp_path,
        {
            **SHRUNK,
            "data": {"source": "reddit_movie", "path": "dump", "validation_month": "2022-11", "test_month": "2022-12"},
            "demonstrations": {"until": None, "teacher": {"kind": "similarity"}, "adjust": {"epochs": 2}},
        },
    )
    for stage in ("data", "demonstrations"):
        run_in(tmp_path, sys.executable, "-m", "convrec.cli", stage)
    processed = tmp_path / "data" / "processed"
    test = pd.read_parquet(processed / "test.parquet")
    assert test["date"].str.startswith("2022-12").all() and test["prompt_id"].nunique() <= len(test)
    metrics = json.loads((tmp_path / "metrics" / "demonstrations.json").read_text())
    assert metrics["validation"]["adjust"]["in_catalog"] == metrics["validation"]["adjust"]["format"] == 1
