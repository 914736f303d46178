import numpy as np
import pandas as pd

from convrec.evaluation.comparison import SAMPLES, mean_interval
from convrec.evaluation.slices import slice_rows, slice_scores
from tests.rows import make_row

COUNTS = np.array([6, 3, 2, 1, 0])  # of the catalog's Heat, Dune, Dune, Up, Alien: thirds of 12 end at Heat and Dune


def _row(prompt, liked, words=3, seen=(), date="2022-12-01"):
    return make_row(prompt, liked, " ".join(["word"] * (words - 1)), seen_titles=list(seen), date=date)


def test_rows_fall_into_slices(catalog):
    rows = [
        _row("a", [("Heat", 1995)], words=3),
        _row("a", [("Heat", 1995), ("Alien", 1979)], words=3),
        _row("b", [("Up", 2009)], words=6, seen=["x"], date="2022-11-30"),
        _row("c", [("Primer", 2004)], words=9, seen=["x", "y", "z", "v"], date=""),
    ]
    slices = slice_rows(rows, COUNTS, catalog)
    assert slices["groundtruth_popularity"].tolist() == ["head", "mid", "tail", "tail"]
    assert slices["conversation_words"].tolist() == ["short", "short", "medium", "long"]
    assert slices["mentions"].tolist() == ["0", "0", "1", "3_or_more"]
    assert slices["new_items"].tolist() == ["known", "new", "known", "new"]
    assert slices["month"].tolist() == ["2022-12", "2022-12", "2022-11", "undated"]
    undated = [_row("a", [("Heat", 1995)], date=""), _row("b", [("Up", 2009)], date=None)]
    assert "month" not in slice_rows(undated, COUNTS, catalog)


def test_a_slice_has_its_rows_alone_in_the_given_order():
    tables = {
        name: pd.DataFrame({"prompt_id": list("aabc"), "person": list("aabc"), "m": np.array([0.0, 1, 1, 0]) + shift})
        for name, shift in (("one", 0), ("other", 5))
    }
    kinds = {"month": ["2022-12", "2022-11", "2022-12", "2022-12"], "new_items": ["new", "new", "known", "new"]}
    found = slice_scores(tables, pd.DataFrame(kinds), ["m"], 0)
    assert {kind: list(slices) for kind, slices in found.items()} == {
        "month": ["2022-11", "2022-12"],
        "new_items": ["known", "new"],
    }
    december = found["month"]["2022-12"]
    assert (december["n_rows"], december["n_prompts"]) == (3, 3)
    alone = mean_interval(tables["other"].iloc[[0, 2, 3]], "m", SAMPLES, 0)
    assert december["other"]["m"] == alone._asdict() and december["other"]["m"]["n"] == 3
    assert (found["new_items"]["new"]["n_rows"], found["new_items"]["new"]["n_prompts"]) == (3, 2)
    assert found["new_items"]["known"]["one"]["m"] == {"mean": 1, "low": None, "high": None, "n": 1}
