import importlib

import numpy as np
import pytest

from convrec.data.catalog import Catalog, Item
from convrec.evaluation.scoring import mean_scores, score_lists
from tests.rows import list_quality, make_row


def test_quality_of_clean_of_repeating_and_of_empty_lists(catalog):
    clean = list_quality("Heat (1995)\nUp (2009)", ["up"], catalog, 2)
    assert clean == {"in_catalog": 1, "format": 1, "duplicates": 0, "seen": 0.5, "length": 2}
    repeating = list_quality("Heat (1995)\nHeat (1995)\nPrimer (2004)", [], catalog, 3)
    assert repeating == pytest.approx({"in_catalog": 2 / 3, "format": 0, "duplicates": 1 / 3, "seen": 0, "length": 3})
    assert list_quality("", [], catalog, 2)["in_catalog"] == 0


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
        rows.append(make_row(key, [(items.items[place].title, items.items[place].year) for place in truth]))
        qrels[key] = {lines[place]: 1 for place in truth}
        run[key] = {lines[place]: 100.0 - rank for rank, place in enumerate(listed)}
    cutoffs = (1, 5, 10, 20)
    scores = score_lists(texts, rows, items, 20, cutoffs)
    names = {f"{name}_at_{k}": f"{name}@{k}" for name in ("recall", "ndcg", "hit_rate") for k in cutoffs}
    found = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), [*names.values(), "mrr"], return_mean=False)
    for ours, theirs in {**names, "mrr": "mrr"}.items():
        np.testing.assert_allclose(scores[ours], found[theirs], rtol=0, atol=1e-9)
    assert 0.1 < mean_scores(scores)["ndcg_at_20"] < 0.9
    sizes = np.array([len(qrels[key]) for key in qrels])
    for cutoff in cutoffs:
        share = (scores[f"recall_at_{cutoff}"] * sizes).sum() / sizes.sum()  # of all ground truth
        assert scores[f"micro_recall_at_{cutoff}"].mean() == pytest.approx(share)
