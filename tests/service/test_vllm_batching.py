"""Continuous batching by vLLM's CPU build gives the lists of the recommender."""

import json

from tests.service.recommending import CATALOG, make_recommender, save_model

REQUESTS = [
    ("a film with heists", 4),
    ("cancelled", 9),
    ("I loved Heat and Her", 3),
    ("please " * 40, 5),
    ("Up", 1),
    ("space", 4),
]


def test_lists_of_vllm_are_those_of_transformers(run_module, tmp_path):
    save_model(tmp_path / "model")
    CATALOG.to_frame().to_parquet(tmp_path / "catalog.parquet")
    (tmp_path / "requests.json").write_text(json.dumps(REQUESTS))
    run_module("tests.service.vllm_lists", tmp_path)
    recommender = make_recommender()
    expected = [[str(r) for r in recommender.recommend(words, n)] for words, n in (*REQUESTS, ("the last one", 2))]
    expected[1] = None
    assert json.loads((tmp_path / "lists.json").read_text()) == expected
