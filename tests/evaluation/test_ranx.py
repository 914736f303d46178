import importlib

import numpy as np

from convrec.data.catalog import Catalog, Item
from convrec.evaluation.scoring import score_lists


def test_metrics_of_written_lists_are_those_of_ranx(monkeypatch):
    """Lists of distinct, unseen catalog items: there the method's protocol and ranx's are one."""
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # else it compiles for a minute
    ranx = importlib.import_module("ranx")  # takes seconds, which collecting the tests need not
    rng = np.random.default_rng(3)
    items = Catalog([Item(f"Film {number:02d}", 1950 + number) for number in range(60)])
    lines = [str(item) for item in items.items]
    rows, texts, qrels, run = [], {}, {}, {}
    for number in range(200):
        key = f"q{number:03d}"
        listed = rng.permutation(60)[: rng.integers(1, 21)]
        truth = rng.permutation(60)[: rng.integers(1, 30)]
        texts[key] = "\n".join(lines[place] for place in listed)
        liked = [{"title": items.items[place].title, "year": items.items[place].year} for place in truth]
        rows.append({"prompt_id": key, "conversation_id": key, "groundtruth": liked, "seen_titles": []})
        qrels[key] = {lines[place]: 1 for place in truth}
        run[key] = {lines[place]: 100.0 - rank for rank, place in enumerate(listed)}
    cutoffs = (1, 5, 10, 20)
    scores = score_lists(texts, rows, items, 20, cutoffs)
    names = {f"{name}_at_{k}": f"{name}@{k}" for name in ("recall", "ndcg", "hit_rate") for k in cutoffs}
    found = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), [*names.values(), "mrr"], return_mean=False)
    for ours, theirs in {**names, "mrr": "mrr"}.items():
        np.testing.assert_allclose(scores[ours], found[theirs], rtol=0, atol=1e-9)
    assert 0.1 < scores["ndcg_at_20"].mean() < 0.9
