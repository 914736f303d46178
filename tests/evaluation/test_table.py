import pytest

from convrec.evaluation.table import print_results, print_summary
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.project.results import write_json


def _scores(mean):
    scores = {f"{name}_at_{k}": mean for name in ("recall", "ndcg") for k in (5, 10, 15, 20)} | {"in_catalog": 1.0}
    return {**scores, "intervals": {name: {"low": mean - 0.01, "high": 1.0, "n": 1749} for name in scores}}


def test_the_table_has_n_intervals_and_p_within_80_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    gain = {"mean": 0.1893, "low": 0.1796, "high": 0.1995, "n": 1749, "p": 0.0005}
    values = {name: _scores(0.25) for name in ("popularity", "last_month", "neighbours", "rank_grpo_free", "rank_grpo")}
    metrics = {"n_rows": 1749, "n_prompts": 1175, **values}
    metrics["paired_ndcg_at_20"] = {f"rank_grpo_over_{other}": gain for other in ("neighbours", "rank_grpo_free")}
    chosen = {"popularity": {}, "neighbours": {"neighbours": 100}}
    metrics["baselines"] = {name: {"settings": s, "validation_ndcg_at_20": 0.25} for name, s in chosen.items()}
    metrics["best_baseline"] = "neighbours"
    write_json(Paths(tmp_path).results("evaluate"), metrics)
    print_results(Paths(tmp_path))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80 and "…" not in shown
    assert "1749 rows, 1175 prompts" in shown and "NDCG@20" in shown
    assert shown.count("0.250 ± 0.380") == 2 * len(values)
    assert "Baselines, NDCG@20 on the validation split, which sets their parameters:\n  popularity: 0.2500\n" in shown
    assert "\n  neighbours: 0.2500, the best on validation (neighbours 100)\n" in shown
    assert "Rank-GRPO over Rank-GRPO, free: +0.189" in shown
    assert shown.index("Rank-GRPO  ") < shown.index("Rank-GRPO, free  "), "ablations are the last rows"
    monkeypatch.setenv("COLUMNS", "45")
    print_results(Paths(tmp_path))
    narrow = capsys.readouterr().out
    assert "…" not in narrow and narrow.count("0.380") == 2 * len(values), "cells wrap"
    print_summary(Paths(tmp_path), "Version 2 was promoted.")
    verdict, *_ = capsys.readouterr().out.split("\n\n")
    first = "Of the ground truth, 25\u00a0% is in the first 20; the best classical method, popularity, has 25\u00a0%."
    assert verdict.splitlines()[1:3] == ["Version 2 was promoted.", first] and "free" not in verdict
    assert "Rank-GRPO over neighbours: +0.189 ± 0.010, p < 0.001" in shown


def test_there_must_be_an_evaluation(tmp_path):
    with pytest.raises(InputError, match="no evaluation yet"):
        print_results(Paths(tmp_path))
    file = Paths(tmp_path).results("evaluate")
    write_json(file, {})
    file.write_text(file.read_text()[:1])
    with pytest.raises(InputError, match=f"{file}: not JSON .*; remove it, and make it again"):
        print_results(Paths(tmp_path))
