import json
import re
from html.parser import HTMLParser
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from convrec.data.matching import Truth
from convrec.evaluation.comparison import hits_by_rank, rank_intervals
from convrec.evaluation.examples import judge_lines, worst_rows
from convrec.evaluation.figures import PLOTS, training_figures
from convrec.evaluation.headline import findings, headline_facts, headline_metrics
from convrec.evaluation.report import with_decision
from convrec.evaluation.systems import system_names
from convrec.project.paths import Paths
from convrec.registry.tracking import file_md5, metric_values
from tests.evaluation.report_files import HOSTILE, HOSTILE_LINE, SYSTEMS, build_report, report_params
from tests.rows import make_row

REAL = tuple(name for name in SYSTEMS if name != "oracle" and not name.endswith("_free"))


def _traces(figure):
    """The traces of a plot, as the page hands them to plotly."""
    return json.JSONDecoder().raw_decode(figure, figure.index("[{"))[0]


class _Elements(HTMLParser):
    """Collects the elements of a page, with their attributes, and its text outside scripts and styles."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self._inside = [], "", ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text += data


class _Report(NamedTuple):
    """A report: its files, its HTML, its elements, and its text with single spaces."""

    paths: Paths
    html: str
    page: _Elements
    text: str


def _build(*args, **settings):
    paths, html = build_report(*args, **settings)
    page = _Elements(html)
    return _Report(paths, html, page, " ".join(page.text.split()))


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    return _build(tmp_path_factory.mktemp("report"), report_params())


def test_the_decision_comes_into_the_first_row_of_the_report(synthetic):
    assert "Conversational movie recommender: test report" in synthetic.text
    assert synthetic.text.index("Not made yet") < synthetic.text.index("Ground truth in the first")
    decided = _Elements(with_decision(synthetic.html, "Refused", f"Version 2 was refused: {HOSTILE}."))
    text = " ".join(decided.text.split())
    note = f"Version 2 was refused: {HOSTILE}. convrec registry list has the present state."
    assert f"Decision at the end of the runRefused{note}" in text and "Not made yet" not in text


def test_lines_are_judged_by_the_one_definition_of_a_hit(catalog):
    text = "1. Heat (1996)\nHeat (1995)\nUp (2009)\n\nPrimer (2004)\nAlien (1979)\nDune (2021)\n"
    answers = [[Truth("Heat", 1995), Truth("Up", 2009)], [Truth("Heat", 1995), Truth("Dune", 2021)]]
    lines = judge_lines(text, answers, ["UP"], catalog, num_ranks=3)
    assert [line.status for line in lines] == ["hit", "repeated", "seen", "blank", "outside", "miss", "unscored"]
    assert lines[0].text == "1. Heat (1996)"
    assert judge_lines("", answers, [], catalog, num_ranks=3) == []


def test_texts_are_escaped_and_nothing_is_loaded_from_elsewhere(synthetic):
    html, page = synthetic.html, synthetic.page
    assert HOSTILE not in html and HOSTILE_LINE not in html
    assert page.text.count(HOSTILE) == 6  # as text, in two examples of lists, of demonstrations, and of failures
    assert HOSTILE_LINE in page.text and "default-src 'none'" in html and html.count("plotly.js v") == 1
    loading = {"src", "srcset", "data", "action", "background", "poster"}
    for tag, attributes in page.tags:
        assert tag not in ("img", "link", "base", "iframe") and not loading & set(attributes)
        assert attributes.get("href", "#").startswith("#") and not any(name.startswith("on") for name in attributes)
    assert "@import" not in html.split("<script>")[0] and "url(" not in html.split("<script>")[0]


def test_lists_stand_side_by_side_with_their_marks(synthetic):
    tags, text = synthetic.page.tags, synthetic.page.text
    marks, second = ["hit", "seen", "outside", "hit"], ["miss", "seen", "outside", "hit"]
    # the five steps of both validation prompts, then SFT and Rank-GRPO (p-2 has empty lists), then p-1's worse row
    statuses = [attributes["class"] for tag, attributes in tags if tag == "li" and "class" in attributes]
    assert statuses == marks * 5 + ["miss"] * 5 + marks * 2 + second * 2
    assert "SFT: 2 hits" in text and "Rank-GRPO: 2 hits" in text and text.count("An empty list.") == 4


def test_failures_are_the_worst_rows(synthetic):
    failures = synthetic.text[synthetic.text.index("Worst failures") :]
    assert "33.3 % of the 3 test rows have no hit" in failures and "the 2 rows with the lowest NDCG@20" in failures
    assert failures.index("Failure 1 p-2") < failures.index("Failure 2 p-1")
    assert "An empty list." in failures and "SFT: 0 hits, NDCG@20 0.000" in failures
    assert failures.count("1 hit, NDCG@20 0.631") == 2  # 1 / log2(3): the second of the unseen catalog lines


def test_each_prompt_has_one_failure_and_ties_go_by_loss_then_prompt_then_place():
    scores, baseline = np.array([0.0, 0.0, 0.5, 0.0, 0.0]), np.array([0.1, 0.3, 0.9, 0.3, 0.3])
    assert worst_rows(scores, baseline, ["a", "c", "d", "b", "b"], 9) == [3, 1, 0, 2]
    assert worst_rows(scores, baseline, ["a", "c", "d", "b", "b"], 2) == [3, 1]


@pytest.mark.usefixtures("few_persons")
def test_hits_by_rank_are_those_of_the_metrics_with_intervals(catalog):
    rows = [make_row("a", [film], seen_titles=["Up"]) for film in (("Heat", 1995), ("Alien", 1979))]
    rows.append(make_row("b", [("Heat", 1995)]))
    hits = hits_by_rank({"a": "Up (2009)\nHeat (1995)\nAlien (1979)", "b": "Heat (1995)"}, rows, catalog, 3)
    assert hits.tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0]]
    table = rank_intervals(hits, ["a", "a", "b"], seed=1)
    assert table["mean"].tolist() == pytest.approx([2 / 3, 1 / 3, 0])
    assert table["low"].tolist() == pytest.approx([0.5, 0, 0])  # all draws are of a
    assert table["high"].tolist() == pytest.approx([1, 0.5, 0])


def test_only_the_ablation_shows_free_lists_and_slices_have_their_n(synthetic):
    text, html = synthetic.text, synthetic.html
    start, end = text.index("Ablations: without"), text.index("Slices of the test split")
    shown, others = text[start:end], text[:start] + text[end:]
    assert shown.index("SFT, free") < shown.index("Rank-GRPO, free") and ", free" not in others
    assert "Rank-GRPO, free0.720± 0.010+0.030± 0.010; p < 0.001" in shown
    assert "A free list" not in text, "examples are lists that are served"
    assert "3 or more: 997 rows of 897 prompts." in text and 'id="plot-slice_new_items"' in html
    assert 'id="plot-slice_month"' not in html and "Month2022-121,000900" in text, "one slice: no plot"
    assert "mentions3 or more" not in text and "3 or more9978970.170± 0.0250.270± 0.025" in text


def test_plots_below_each_other_have_one_axis(synthetic):
    layouts = dict(re.findall(r'<div id="plot-(\w+)".*?json">.*?("layout":.*?)</script>', synthetic.html, re.DOTALL))
    layouts = {name: json.JSONDecoder().raw_decode(text, len('"layout":'))[0] for name, text in layouts.items()}
    slices = [one for name, one in layouts.items() if name.startswith("slice_")]
    ranges = [one["xaxis"]["range"] for one in slices]
    assert len(ranges) > 1 and all(one == ranges[0] for one in ranges) and ranges[0][0] < 0 < ranges[0][1]
    assert {one["margin"]["l"] for one in slices} == {104}
    ticks = layouts["demonstrations"]["yaxis"]["ticktext"]
    assert ticks[:2] == ["Teacher", "Remap"], "beside the axis, also on a phone"
    steps = [layouts[name] for name in ("reward", "groups", "validation_ndcg", "validation_recall")]
    assert len({(*one["xaxis"]["range"], one["margin"]["l"]) for one in steps}) == 1
    assert all(axis["ticklabelstandoff"] > 0 for one in layouts.values() for axis in (one["xaxis"], one["yaxis"]))


def test_what_is_not_there_is_left_out(tmp_path, synthetic):
    """Real data without dates, constraint and slices, and trainings too short to log."""
    kept = {"dated": False, "systems": REAL, "without": ("slices",), "empty": ("sft",)}
    _, html, _, text = _build(tmp_path, report_params("redial"), chosen=0, **kept)
    remark = "; no checkpoint was better, so it was kept."
    assert remark in text and remark not in synthetic.text
    assert "The data are a simulation" not in text and "oracle" not in text
    assert text.count("undated") == 3  # the splits
    assert "Ablations: without" not in html and "Slices of the test split" not in html
    assert 'href="#slices"' not in html and "too short to log a loss" in html
    for name, drawn in (("sft", False), ("popularity", True), ("ladder", True)):
        assert (f'id="plot-{name}"' in html) == drawn, name


def _drawn(**plots):
    """The curves that the stages leave, without points but for some."""
    return {name: plots.get(name, pd.DataFrame()) for name in PLOTS}


def test_each_cutoff_has_a_curve_and_the_chosen_checkpoint_a_line():
    scores = {"recall_at_5": 0.2, "ndcg_at_5": 0.1, "recall_at_2": 0.3, "ndcg_at_2": 0.4, "in_catalog": 1, "format": 1}
    frame = pd.DataFrame([{"step": step, **scores, "ndcg_at_5": 0.1 + step} for step in (0, 1, 2)])
    figure = training_figures(_drawn(validation=frame), [2, 5], 1)["validation_ndcg"]
    assert [(trace["name"], trace["x"]) for trace in _traces(figure)] == [("NDCG@5", [0, 1, 2]), ("NDCG@2", [0, 1, 2])]
    assert '"x0":1,"x1":1' in figure


def test_numbers_intervals_and_versions_are_shown(synthetic):
    paths, html, _, text = synthetic
    assert "1,234 rows, 2 prompts" in text
    assert "0.320± 0.010" in text  # SFT, NDCG@20
    assert "<strong>0.420</strong>" in html and "<strong>0.520</strong>" not in html  # Rank-GRPO, the oracle
    assert "OverRank-GRPO SFT +0.012± 0.013; p = 0.072" in text and "popularity +0.200± 0.050; p < 0.001" in text
    assert "<strong>+0.200</strong>" in html and "<strong>+0.012</strong>" not in html
    assert "popularity0.125– item-kNN0.062shrinkage 10, nearest 200, dislike weight 0.5" in text
    assert "75.0 %12.5 %6.2 %19.5" in text  # format, repeated, seen, lines
    assert "ground-truth items outside the catalog7keep" in text and "6.25 % of catalog" in text
    for path in (paths.catalog, *(paths.split(name) for name in ("train", "validation", "test"))):
        assert file_md5(path) in text
    drawn = "demonstrations entropy validation_ndcg validation_lists ladder groups kl hits"
    for name in (*drawn.split(), *(name for name in PLOTS if name not in ("reward_by_rank", "validation"))):
        assert f'id="plot-{name}"' in html


def test_rank_groups_are_means_of_their_ranks_smoothed_over_steps():
    frame = pd.DataFrame([{"step": s, "rank": r, "reward": float(r)} for s in range(1, 31) for r in range(1, 21)])
    few = frame[frame["rank"] <= 5]
    found, first = (_traces(training_figures(_drawn(reward_by_rank=f), [2], 1)["groups"]) for f in (frame, few))
    lines = {line["name"]: line["y"] for line in found}
    assert lines == {"ranks 1–5": [3.0] * 30, "ranks 6–10": [8.0] * 30, "ranks 11–20": [15.5] * 30}
    assert len(first) == 1


def _system(ndcg, **others):
    shares = {"ndcg_at_20": ndcg, "recall_at_20": 2 * ndcg, "format": 1.0, "in_catalog": 1.0, "duplicates": 0.0}
    return {**shares, "intervals": {}, **others}


def test_the_card_and_the_words_say_what_is_better():
    scores = {"neighbours": 0.5, "ease": 0.45, "item_knn": 0.42, "popularity": 0.1}
    scores |= {"sft_free": 0.2, "sft": 0.25, "rank_grpo_free": 0.3}
    evaluation = {
        **{name: _system(score) for name, score in scores.items()},
        "rank_grpo": _system(0.4, coverage=0.5),
        "paired_ndcg_at_20": {
            "rank_grpo_over_sft": {"mean": 0.15, "low": 0.14, "high": 0.16, "p": 0.0005},
            "rank_grpo_over_neighbours": {"mean": -0.1, "low": -0.12, "high": -0.08, "p": 0.0123},
            "rank_grpo_over_ease": {"mean": -0.05, "low": -0.09, "high": -0.01, "p": 0.02},
            "rank_grpo_over_item_knn": {"mean": -0.02, "low": -0.05, "high": 0.01, "p": 0.2},
            "rank_grpo_over_rank_grpo_free": {"mean": 0.1, "low": 0.05, "high": 0.15, "p": 0.0005},
        },
    }
    systems = system_names(evaluation)
    facts = {fact.label: fact.value for fact in headline_facts(evaluation, systems, "ndcg_at_20")}
    assert facts == {
        "Ground truth in the first 20": "80\u00a0%",
        "Place among the baselines": "4 of 5",
        "Exact format": "100.0 %",
        "Coverage": "50.0 %",
    }
    assert findings(evaluation, systems, "ndcg_at_20") == [
        "Of the ground truth, 80\u00a0% is in the first 20; the best classical method, neighbours, has 100\u00a0%.",
        "Rank-GRPO loses to the strongest baseline, neighbours, in NDCG@20: -0.100 ± 0.020, p = 0.012.",
        "Rank-GRPO beats SFT in NDCG@20: +0.150 ± 0.010, p < 0.001.",
        "2 baselines score clearly higher: neighbours, EASE.",
        "Without the constraint, its lists are worse: NDCG@20 falls by 0.100.",
    ]


def test_without_an_interval_nothing_beats_or_loses():
    gain = {"mean": 0.5, "low": None, "high": None, "p": 0.25}
    evaluation = {"neighbours": _system(0.1), "sft": _system(0.1), "rank_grpo": _system(0.6)}
    evaluation["paired_ndcg_at_20"] = {"rank_grpo_over_sft": gain, "rank_grpo_over_neighbours": {**gain, "mean": -0.5}}
    _, second, first = findings(evaluation, system_names(evaluation), "ndcg_at_20")
    assert first == "Rank-GRPO is not clearly different from SFT in NDCG@20: +0.500 (too few persons), p = 0.250."
    assert "is not clearly different from the strongest baseline, neighbours," in second


def test_the_headlines_are_each_systems_metric_and_the_gains_of_the_served_model():
    systems = {"popularity": 0.1, "neighbours": 0.2, "sft": 0.15, "rank_grpo_free": 0.25, "rank_grpo": 0.3}
    gains = {f"rank_grpo_over_{other}": {"mean": 0.3 - systems[other], "low": 0.0, "high": 1.0} for other in systems}
    del gains["rank_grpo_over_rank_grpo"]
    evaluation = {name: _system(value, mrr=3 * value) for name, value in systems.items()}
    evaluation |= {"n_rows": 7, "best_baseline": "neighbours", "paired_ndcg_at_20": gains, "slices": {"month": {}}}
    found = metric_values(headline_metrics(evaluation, "ndcg_at_20"), "test/")
    expected = {"test/n_rows": 7.0, **{f"test/ndcg_at_20/{name}": value for name, value in systems.items()}}
    expected |= {"test/recall_at_20/rank_grpo": 0.6, "test/gain/over_sft": 0.15, "test/gain/over_neighbours": 0.1}
    assert found == pytest.approx(expected)
