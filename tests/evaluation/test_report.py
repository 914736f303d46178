import json
from html.parser import HTMLParser
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from convrec.data.matching import Truth
from convrec.evaluation.comparison import hits_by_rank, rank_intervals
from convrec.evaluation.examples import faults, judge_lines, worst_rows
from convrec.evaluation.figures import PLOTS, data_figures, story_figures, training_figures
from convrec.evaluation.headline import findings, headline_facts
from convrec.evaluation.metrics import metric_label
from convrec.evaluation.systems import system_names
from convrec.project.paths import Paths
from convrec.registry.tracking import file_md5
from tests.evaluation.report_files import HOSTILE, HOSTILE_LINE, SYSTEMS, build_report, report_params

REAL = tuple(name for name in SYSTEMS if name != "oracle" and not name.endswith("_constrained"))


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


def test_lines_are_judged_by_the_one_definition_of_a_hit(catalog):
    text = "1. Heat (1996)\nHeat (1995)\nUp (2009)\n\nPrimer (2004)\nAlien (1979)\nDune (2021)\n"
    answers = [[Truth("Heat", 1995), Truth("Up", 2009)], [Truth("Heat", 1995), Truth("Dune", 2021)]]
    lines = judge_lines(text, answers, ["UP"], catalog, num_ranks=3)
    assert [line.status for line in lines] == ["hit", "repeated", "seen", "blank", "outside", "miss", "unscored"]
    assert lines[0].text == "1. Heat (1996)"
    assert judge_lines("", answers, [], catalog, num_ranks=3) == []


def test_metrics_are_named():
    names = [metric_label(m) for m in ("recall_at_5", "ndcg_at_20", "in_catalog", "mrr", "some_new_one")]
    assert names == ["Recall@5", "NDCG@20", "In catalog", "MRR", "Some new one"]
    assert metric_label("recall_at_5", short=True) == "R@5"


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


def test_failures_are_the_worst_rows_and_say_what_was_wrong(synthetic):
    failures = synthetic.text[synthetic.text.index("Worst failures") :]
    assert "33.3 % of the 3 test rows have no hit" in failures and "the 2 rows with the lowest NDCG@20" in failures
    assert failures.index("Failure 1 p-2") < failures.index("Failure 2 p-1")
    assert "Rank-GRPO: an empty list." in failures and "SFT: 0 hits, NDCG@20 0.000" in failures
    assert failures.count("1 hit, NDCG@20 0.631") == 2  # 1 / log2(3): the second of the unseen catalog lines
    wrong = "4 lines instead of 20; 1 of 4 lines outside the catalog; 1 of 4 lines that name a seen title."
    assert f"Rank-GRPO: {wrong}" in failures


def test_each_prompt_has_one_failure_and_ties_go_by_loss_then_prompt_then_place():
    scores, baseline = np.array([0.0, 0.0, 0.5, 0.0, 0.0]), np.array([0.1, 0.3, 0.9, 0.3, 0.3])
    assert worst_rows(scores, baseline, ["a", "c", "d", "b", "b"], 9) == [3, 1, 0, 2]
    assert worst_rows(scores, baseline, ["a", "c", "d", "b", "b"], 2) == [3, 1]


def test_faults_are_named_with_their_numbers(catalog):
    truth = [Truth("Heat", 1995), Truth("Alien", 1979), Truth("Primer", 2004)]
    text = "Dune (2021)\nDune (2021)\n\nUp (2009)\nPrimer (2004)\nDune (1984)"
    lines = judge_lines(text, [truth], ["Up"], catalog, num_ranks=6)
    assert faults(lines, truth, {0}, catalog, 6) == [
        "1 of 6 lines outside the catalog",
        "1 of 6 lines that name a seen title",
        "1 of 6 lines that repeat an earlier one",
        "1 of 6 lines that are blank",
        "1 of 3 ground-truth items outside the catalog",
        "1 of 3 ground-truth items never liked in training",
        "usable lines without a hit: 2",
    ]
    heat = judge_lines("Heat (1995)", [truth[:1]], [], catalog, num_ranks=1)
    assert faults(heat, truth[:1], {0}, catalog, 1) == []


def test_hits_by_rank_are_those_of_the_metrics_with_intervals(catalog):
    rows = [
        {"prompt_id": "a", "groundtruth": [{"title": "Heat", "year": 1995}], "seen_titles": ["Up"]},
        {"prompt_id": "a", "groundtruth": [{"title": "Alien", "year": 1979}], "seen_titles": ["Up"]},
        {"prompt_id": "b", "groundtruth": [{"title": "Heat", "year": 1995}], "seen_titles": []},
    ]
    hits = hits_by_rank({"a": "Up (2009)\nHeat (1995)\nAlien (1979)", "b": "Heat (1995)"}, rows, catalog, 3)
    assert hits.tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0]]
    table = rank_intervals(hits, ["a", "a", "b"], samples=200, seed=1)
    assert table["mean"].tolist() == pytest.approx([2 / 3, 1 / 3, 0])
    assert table["low"].tolist() == pytest.approx([0.5, 0, 0])  # all draws are of a
    assert table["high"].tolist() == pytest.approx([1, 0.5, 0])


def test_constrained_systems_stand_beside_the_free_ones_and_slices_have_their_n(synthetic):
    text, html = synthetic.text, synthetic.html
    shown = text[text.index("Constrained against free") : text.index("Slices of the test split")]
    places = [shown.index(f"{name}, {kind}") for name in ("SFT", "Rank-GRPO") for kind in ("free", "constrained")]
    assert places == sorted(places)
    gain = "minus free, paired over the same 1,234 rows, in NDCG@20: +0.030 ± 0.010, p < 0.001"
    assert f"Rank-GRPO, constrained, {gain}" in shown
    assert "3 or more: 997 rows of 897 prompts." in text and 'id="plot-slice_new_items"' in html
    assert 'id="plot-slice_month"' not in html and "Month2022-121,000900" in text, "one slice: no plot"
    assert "mentions3 or more" not in text and "3 or more9978970.170± 0.0250.270± 0.025" in text


def test_what_is_not_there_is_left_out(tmp_path):
    """Real data without dates, constraint and slices, and trainings too short to log."""
    kept = {"dated": False, "systems": REAL, "without": ("slices",), "empty": ("sft", "adjust")}
    _, html, _, text = _build(tmp_path, report_params("redial"), **kept)
    assert "The data are a simulation" not in text and "oracle" not in text
    assert text.count("undated") == 4  # the three splits, and in place of the plot of the months
    assert "Constrained against free" not in html and "Slices of the test split" not in html
    assert 'href="#slices"' not in html and "too short to log a loss" in html and "Adjust was not run" in html
    for name, drawn in (("rows_by_month", False), ("sft", False), ("conversation_words", True), ("ladder", True)):
        assert (f'id="plot-{name}"' in html) == drawn, name


def test_unknown_systems_are_named_by_their_key():
    scores = {"intervals": {}}
    evaluation = {"n_rows": 3, "some_new_one": scores, "sft_constrained": scores, "rank_grpo": scores, "sft": scores}
    assert list(system_names(evaluation).items()) == [
        ("sft", "SFT"),
        ("sft_constrained", "SFT, constrained"),
        ("rank_grpo", "Rank-GRPO"),
        ("some_new_one", "some new one"),
    ]


def _drawn(**plots):
    """The curves that the stages leave, without points but for some."""
    return {name: plots.get(name, pd.DataFrame()) for name in PLOTS}


def test_the_chosen_checkpoint_is_ringed_and_the_start_is_a_level():
    scores = {"recall_at_5": 0.2, "ndcg_at_5": 0.1, "recall_at_2": 0.3, "ndcg_at_2": 0.4, "in_catalog": 1, "format": 1}
    frame = pd.DataFrame([{"step": step, **scores, "ndcg_at_5": 0.1 + step} for step in (0, 1, 2)])
    figures = training_figures(_drawn(validation=frame), [2, 5], 1, "SFT")
    traces = {trace["name"]: trace for trace in _traces(figures["validation_ndcg"])}
    assert list(traces) == ["NDCG@5", "NDCG@2", "SFT, NDCG@5", "chosen: step 1"]
    assert (traces["chosen: step 1"]["x"], traces["chosen: step 1"]["y"]) == ([1], [1.1])
    assert (traces["SFT, NDCG@5"]["x"], traces["SFT, NDCG@5"]["y"]) == ([0, 2], [0.1, 0.1])
    late = _traces(training_figures(_drawn(validation=frame[1:]), [2, 5], 7, "SFT")["validation_ndcg"])
    assert [trace["name"] for trace in late] == ["NDCG@5", "NDCG@2"]


def test_numbers_intervals_and_versions_are_shown(synthetic):
    paths, html, _, text = synthetic
    assert "1,234 rows, 2 prompts" in text
    assert "0.320± 0.010" in text  # SFT, NDCG@20
    assert "<strong>0.720</strong>" in html and "<strong>0.520</strong>" not in html  # constrained, the oracle
    assert "OverRank-GRPO SFT +0.012± 0.013; p = 0.072" in text and "popularity +0.200± 0.050; p < 0.001" in text
    assert "<strong>+0.200</strong>" in html and "<strong>+0.012</strong>" not in html
    assert "popularity0.125– item-kNN0.062shrinkage 10, nearest all, dislike weight 0.5" in text
    assert "75.0 %12.5 %6.2 %19.5" in text  # format, repeated, seen, lines
    assert "ground-truth items outside the catalog7keep" in text and "6.25 % of catalog" in text
    for path in (paths.catalog, *(paths.split(name) for name in ("train", "validation", "test"))):
        assert file_md5(path) in text
    drawn = "demonstrations entropy validation_ndcg validation_lists ladder groups course kl hits"
    for name in (*drawn.split(), *(name for name in PLOTS if name not in ("reward_by_rank", "validation"))):
        assert f'id="plot-{name}"' in html


def test_the_data_are_described(synthetic):
    text = synthetic.text
    assert "covers 60.0 % of the catalog's items" in text  # Heat, Alien, Up of five
    assert "The most liked 1 % of the catalog has 33.3 % of the mentions" in text and "Gini coefficient: 0.400" in text
    assert "turnstrain22.02.02.02" in text and "seen titlestrain11.01.01.01" in text
    assert "train0.0 %–" in text and "test0.0 %0.0 %" in text  # outside the catalog, cold
    assert text.index("Results on the test split") < text.index("Rows by month") < text.index("After each step")


def test_each_month_is_a_bar_of_its_split_and_each_bin_a_share_of_it():
    months = [("2021-12", "train", 7), ("2022-01", "train", 5), ("2022-02", "test", 3)]
    counts = pd.DataFrame({"words": [7, 1000], "train": [1, 3], "validation": [0, 2], "test": [0, 0]})
    figures = data_figures(
        _drawn(
            rows_by_month=pd.DataFrame(months, columns=["month", "split", "rows"]),
            conversation_words=counts,
            groundtruth_sizes=counts.rename(columns={"words": "size"}),
            catalog_popularity=pd.DataFrame({"items": [0, 1], "mentions": [0, 1]}),
        )
    )
    assert [(bar["name"], bar["x"], bar["y"]) for bar in _traces(figures["rows_by_month"])] == [
        ("train", ["2021-12", "2022-01"], [7, 5]),
        ("test", ["2022-02"], [3]),
    ]
    assert [(line["x"], line["y"]) for line in _traces(figures["conversation_words"])] == [
        (["7", "1,000"], [0.25, 0.75]),
        (["7", "1,000"], [0, 1]),
        (["7", "1,000"], [0, 0]),
    ]


def test_rank_groups_are_means_of_their_ranks_smoothed_over_steps():
    frame = pd.DataFrame([{"step": s, "rank": r, "reward": float(r)} for s in range(1, 31) for r in range(1, 21)])
    few = frame[frame["rank"] <= 5]
    found, first = (
        _traces(story_figures(_drawn(reward_by_rank=f), {}, {}, "ndcg_at_20")["groups"]) for f in (frame, few)
    )
    lines = {line["name"]: line["y"] for line in found}
    assert lines == {"ranks 1–5": [3.0] * 30, "ranks 6–10": [8.0] * 30, "ranks 11–20": [15.5] * 30}
    assert len(first) == 1


def _system(ndcg, **others):
    return {"ndcg_at_20": ndcg, "format": 1.0, "in_catalog": 1.0, "duplicates": 0.0, "intervals": {}, **others}


def test_the_card_and_the_words_say_what_is_better_and_what_is_worse():
    evaluation = {
        "neighbours": _system(0.5),
        "ease": _system(0.45),
        "popularity": _system(0.1),
        "sft": _system(0.2, format=0.99),
        "sft_constrained": _system(0.25),
        "rank_grpo": _system(0.3, format=0.83, duplicates=0.2),
        "rank_grpo_constrained": _system(0.4, coverage=0.5),
        "paired_ndcg_at_20": {
            "rank_grpo_constrained_over_sft_constrained": {"mean": 0.15, "low": 0.14, "high": 0.16, "p": 0.0005},
            "rank_grpo_constrained_over_neighbours": {"mean": -0.1, "low": -0.12, "high": -0.08, "p": 0.0123},
            "rank_grpo_constrained_over_rank_grpo": {"mean": 0.1, "low": 0.05, "high": 0.15, "p": 0.0005},
        },
    }
    systems = system_names(evaluation)
    facts = {fact.label: fact.value for fact in headline_facts(evaluation, systems, "ndcg_at_20")}
    assert facts == {
        "NDCG@20 gain over constrained SFT": "+0.150 ± 0.010",
        "Place among the baselines": "3 of 4",
        "Exact format": "100.0 %",
        "In catalog": "100.0 %",
        "Coverage": "50.0 %",
    }
    assert findings(evaluation, systems, "ndcg_at_20") == [
        "Constrained Rank-GRPO beats constrained SFT in NDCG@20: +0.150 ± 0.010, p < 0.001.",
        "Constrained Rank-GRPO loses to the strongest baseline, neighbours, in NDCG@20: -0.100 ± 0.020, p = 0.012.",
        "2 baselines score higher: neighbours, EASE.",
        "Without the constraint, its lists are worse: NDCG@20 falls by 0.100.",
        "Exact format of the free lists fell from 99.0 % after SFT to 83.0 % after Rank-GRPO.",
        "The share of repeated lines of the free lists rose from 0.0 % after SFT to 20.0 % after Rank-GRPO.",
    ]
