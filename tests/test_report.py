import json
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from convrec.config import Params, load_params
from convrec.data.conversations import write_rows
from convrec.data.quarantine import Quarantine
from convrec.data.schemas import write_catalog
from convrec.data.statistics import describe
from convrec.evaluation.data_figures import DATA_PLOTS, months_figure, words_figure
from convrec.evaluation.report import best_models, judge_lines, metric_label, rank_figure
from convrec.matching import Truth
from convrec.paths import Paths
from convrec.stages import report
from convrec.stages.files import STEP_COLUMNS, write_json, write_plot
from convrec.tracking import file_md5

SYSTEMS = ("popularity", "zero_shot", "sft", "rank_grpo", "oracle")
HOSTILE = "<script>alert('x')</script> & {{ 7 * 7 }} \"quoted\""
HOSTILE_LINE = "<img src=x onerror=alert(1)> (1999)"
SFT_LIST = f"Heat (1995)\nUp (2009)\n{HOSTILE_LINE}\nAlien (1979)"


class FakeRun:
    def __init__(self):
        self.artifacts = []

    def log_artifact(self, path, folder=None):
        self.artifacts.append(path)


def _row(prompt_id, date, accepted):
    messages = [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": "Any era?"}]
    truths = [{"title": title, "year": year} for title, year in accepted]
    return {
        "prompt_id": prompt_id,
        "date": date,
        "messages": messages,
        "groundtruth": truths,
        "seen_titles": ["Up"],
    }


def _scores(value, cutoffs):
    metrics = {f"{name}_at_{k}": value + k / 1000 for name in ("recall", "ndcg") for k in cutoffs}
    metrics["in_catalog"] = 0.9
    intervals = {name: {"low": mean - 0.01, "high": mean + 0.01} for name, mean in metrics.items()}
    quality = {"format": 0.75, "duplicates": 0.125, "seen": 0.0625, "length": 19.5}
    return {**metrics, **quality, "intervals": intervals}


def _demonstration_metrics(cutoffs):
    steps = {step: _scores(0.25, cutoffs) for step in STEP_COLUMNS}
    kinds = {"exact": 0.8, "normalised": 0.0625, "fuzzy": 0.0375}
    return {
        "train_prompts": 2,
        "held_out": {"rows": 3, "prompts": 2, **steps},
        "validation": {"rows": 3, "prompts": 2, **steps},
        "train_answers": {"empty": 0.0, "fewer": 0.125, "exact": 0.875, "more": 0.0},
        "train_titles": {"mentions": 1234.0, "before": 0.8, "after": 0.9, **kinds},
        "train_sources": {**kinds, "semantic": 0.1},
        "train_ratings": {"asked": 4321, "missing": 17},
        "popularity_distance": {"reflect": 0.375, "adjust": 0.25},
        "adjust": {"best_epoch": 1, "epochs": 1},
    }


def _write_inputs(paths, params, catalog, dated, systems):
    """Write what the other stages leave behind, in their shapes."""
    cutoffs = params.common.cutoffs
    headline = f"ndcg_at_{max(cutoffs)}"
    paths.processed.mkdir(parents=True)
    write_catalog(catalog, paths.catalog)
    splits = {}
    for name, month in (("train", "10"), ("validation", "11"), ("test", "12")):
        dates = [f"2022-{month}-0{day}" if dated else "" for day in (1, 2, 3)]
        accepted = [[("Heat", 1995)], [("Alien", 1979)], [("Up", 2009)]]
        ids = ["p-1", "p-1", "p-2"]
        rows = [_row(*values) for values in zip(ids, dates, accepted, strict=True)]
        splits[name] = pd.DataFrame(rows)
        write_rows(splits[name], paths.split(name))
    quarantine = Quarantine()
    quarantine.add("catalog", 3, "year is no number", "Untitled")
    quarantine.write(paths.quarantine)
    counts = {name: {"rows": 3, "prompts": 2} for name in ("train", "validation", "test")}
    statistics, tables = describe(splits, catalog)
    shares = {"catalog": 0.0625, "rows": 0.0}
    problems = {"outside_catalog": 7, "seen_truth": 0, "duplicate_rows": 0, "leaks": 0}
    data = {"catalog": len(catalog), "quarantined_share": shares, "problems": problems, **counts}
    data["statistics"] = statistics
    write_json(paths.metrics("data"), data)
    for name, table in tables.items():
        write_plot(paths.plot(name), table)
    write_json(paths.metrics("demonstrations"), _demonstration_metrics(cutoffs))
    lists = {column: [SFT_LIST, "Heat (1995)"] for column in STEP_COLUMNS.values()}
    write_rows(pd.DataFrame({"prompt_id": ["p-1", "p-2"], **lists}), paths.demonstration("validation"))
    shares = {"ground_truth": 0.5, "reflect": 0.5, "adjust": 0.5}
    write_plot(paths.plot("popularity"), [{"bucket": bucket, **shares} for bucket in (1, 2)])
    write_plot(
        paths.plot("adjust"), [{"epoch": 0, "held_out_loss": 2.0}, {"epoch": 1, "held_out_loss": 1.0, "loss": 1.5}]
    )
    write_json(paths.metrics("sft"), {"loss": 1.5, "steps": 20})
    write_json(paths.metrics("rank_grpo"), {"hits": 2.5, "validation": {headline: 0.3}})
    values = {name: _scores(0.1 * place, cutoffs) for place, name in enumerate(systems, start=1)}
    gains = {
        "rank_grpo_over_sft": {"mean": 0.0123, "low": -0.0011, "high": 0.0257},
        "rank_grpo_over_popularity": {"mean": 0.2, "low": 0.15, "high": 0.25},
    }
    write_json(paths.metrics("evaluate"), {"n_rows": 1234, "n_prompts": 2, **values, f"paired_{headline}": gains})
    for name in systems:
        responses = {"prompt_id": ["p-1", "p-2"], "response": [SFT_LIST, ""]}
        write_rows(pd.DataFrame(responses), paths.predictions / f"{name}.parquet")
    write_plot(paths.plot("sft"), [{"step": step, "loss": 2 / step} for step in (10, 20)])
    write_plot(paths.plot("reward"), [{"step": step, "hits": step, "kl": 0.0} for step in (1, 2)])
    by_rank = [{"step": s, "rank": r, "reward": s / r} for s in (1, 2) for r in (1, 2)]
    write_plot(paths.plot("reward_by_rank"), by_rank)
    scores = {f"ndcg_at_{k}": 0.1 for k in cutoffs}
    write_plot(paths.plot("validation"), [{"step": step, **scores} for step in (0, 2)])


def _params(source="synthetic"):
    """The shipped parameters, with another source of data."""
    params = load_params(Path(__file__).parents[1] / "params.yaml")
    raw = params.model_dump()
    raw["data"] |= {"source": source, "path": "somewhere"}
    return Params.model_validate(raw)


def _build(root, catalog, params, *, dated=True, systems=SYSTEMS, empty=()):
    paths, record = Paths(root), FakeRun()
    _write_inputs(paths, params, catalog, dated, systems)
    for name in empty:
        write_plot(paths.plot(name), [])
    report.run(params, paths, record)
    assert record.artifacts == [paths.report]
    return paths, paths.report.read_text(encoding="utf-8")


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


@pytest.fixture
def synthetic(tmp_path, catalog):
    return _build(tmp_path, catalog, _params())


def test_lines_are_judged_by_the_one_definition_of_a_hit(catalog):
    text = "1. Heat (1996)\nHeat (1995)\nUp (2009)\n\nPrimer (2004)\nAlien (1979)\nDune (2021)\n"
    answers = [[Truth("Heat", 1995), Truth("Up", 2009)], [Truth("Heat", 1995), Truth("Dune", 2021)]]
    lines = judge_lines(text, answers, ["UP"], catalog, num_ranks=3)
    assert [line.status for line in lines] == ["hit", "miss", "seen", "blank", "outside", "miss", "unscored"]
    assert lines[0].text == "1. Heat (1996)"
    assert judge_lines("", answers, [], catalog, num_ranks=3) == []


def test_metrics_are_named_and_the_best_model_is_found_among_the_models():
    assert [metric_label(m) for m in ("recall_at_5", "ndcg_at_20", "in_catalog")] == [
        "Recall@5",
        "NDCG@20",
        "In catalog",
    ]
    evaluation = {"popularity": {"m": 0.9}, "sft": {"m": 0.2}, "rank_grpo": {"m": 0.1}, "n_rows": 3}
    assert best_models(evaluation, ["m"]) == {"m": 0.2}


def test_texts_are_escaped(synthetic):
    _, html = synthetic
    page = _Elements(html)
    assert HOSTILE not in html and HOSTILE_LINE not in html
    assert page.text.count(HOSTILE) == 4  # it is shown, as text, in both examples of lists and of demonstrations
    assert HOSTILE_LINE in page.text
    assert "img" not in {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_nothing_is_loaded_from_elsewhere(synthetic):
    _, html = synthetic
    page = _Elements(html)
    loading = {"src", "srcset", "data", "action", "background", "poster"}
    assert not [tag for tag, attributes in page.tags if loading & set(attributes) or tag in ("link", "base", "iframe")]
    assert all(attributes["href"].startswith("#") for _, attributes in page.tags if "href" in attributes)
    assert "@import" not in html.split("<script>")[0] and "url(" not in html.split("<script>")[0]
    assert "default-src 'none'" in html
    assert html.count("plotly.js v") == 1


def test_lists_stand_side_by_side_with_their_marks(synthetic):
    _, html = synthetic
    page = _Elements(html)
    statuses = [attributes["class"] for tag, attributes in page.tags if tag == "li" and "class" in attributes]
    marks = ["hit", "seen", "outside", "hit"]
    # the four steps of both validation prompts, then SFT and Rank-GRPO; the test prompt p-2 has empty lists
    assert statuses == marks * 4 + ["miss"] * 4 + marks * 2
    assert "SFT: 2 hits" in page.text and "Rank-GRPO: 2 hits" in page.text
    assert page.text.count("An empty list.") == 2


def test_numbers_intervals_and_versions_are_shown(synthetic):
    paths, html = synthetic
    text = " ".join(_Elements(html).text.split())
    assert "1,234 rows, 2 prompts" in text
    assert "0.32000.3100–0.3300" in text  # SFT, NDCG@20
    assert "<strong>0.4200</strong>" in html and "<strong>0.5200</strong>" not in html  # Rank-GRPO, the oracle
    assert "Rank-GRPO against SFT +0.0123 (95 % interval -0.0011 to +0.0257, which includes zero)" in text
    assert "Rank-GRPO against popularity +0.2000 (95 % interval +0.1500 to +0.2500)." in text
    assert "75.0 %12.5 %6.2 %19.5" in text  # format, repeated, seen, lines
    assert "ground-truth items outside the catalog7keep" in text
    assert "catalogyear is no number1" in text and "6.25 % of catalog" in text
    assert "rank_grpo.num_generations" in text
    for path in (paths.catalog, *(paths.split(name) for name in ("train", "validation", "test"))):
        assert file_md5(path) in text
    assert "exact80.0 %80.0 %" in text and "17 of 4,321" in text and "before 0.375, after 0.250" in text
    for name in (*DATA_PLOTS, "demonstrations", "popularity", "adjust", "sft", "reward", "validation", "ranks"):
        assert f'id="plot-{name}"' in html


def test_the_data_are_described(synthetic):
    text = " ".join(_Elements(synthetic[1]).text.split())
    assert "names 60.0 % of the catalog's items" in text  # Heat, Alien, Up of five
    assert "Of its mentions 33.3 % fall on the most liked 1 %" in text and "Gini coefficient: 0.400" in text
    assert "turnstrain22.02.02.02" in text and "seen titlestrain11.01.01.01" in text
    assert "train0.0 %–" in text and "test0.0 %0.0 %" in text  # outside the catalog, cold
    assert text.index("Results on the test split") < text.index("Rows by month") < text.index("After each step")


def test_each_month_is_a_bar_of_its_split_and_each_bin_a_share_of_it():
    months = [("2021-12", "train", 7), ("2022-01", "train", 5), ("2022-02", "test", 3)]
    bars = _traces(months_figure(pd.DataFrame(months, columns=["month", "split", "rows"])))
    assert [(bar["name"], bar["x"], bar["y"]) for bar in bars] == [
        ("train", ["2021-12", "2022-01"], [7, 5]),
        ("test", ["2022-02"], [3]),
    ]
    counts = pd.DataFrame({"words": [7, 1000], "train": [1, 3], "validation": [0, 2], "test": [0, 0]})
    assert [(line["x"], line["y"]) for line in _traces(words_figure(counts))] == [
        (["7", "1,000"], [0.25, 0.75]),
        (["7", "1,000"], [0, 1]),
        (["7", "1,000"], [0, 0]),
    ]


def test_a_simulation_is_called_one(synthetic):
    text = _Elements(synthetic[1]).text
    assert "The data are a simulation." in text and "oracle" in text
    assert "2022-12-01 to 2022-12-03" in text


def test_real_data_have_no_oracle_and_may_have_no_dates(tmp_path, catalog):
    _, html = _build(tmp_path, catalog, _params("redial"), dated=False, systems=SYSTEMS[:-1])
    text = _Elements(html).text
    assert "The data are a simulation" not in text
    assert "oracle" not in text
    assert text.count("undated") == 4  # the three splits, and in place of the plot of the months
    assert 'id="plot-rows_by_month"' not in html and 'id="plot-conversation_words"' in html


def test_a_run_too_short_to_log_has_no_curve(tmp_path, catalog):
    _, html = _build(tmp_path, catalog, _params(), empty=("sft", "adjust"))
    assert "too short to log a loss" in html and 'id="plot-sft"' not in html
    assert "Adjust was left out" in html and 'id="plot-adjust"' not in html


def test_the_same_inputs_give_the_same_file(tmp_path, catalog):
    first, second = (_build(tmp_path / name, catalog, _params())[1] for name in "ab")
    assert first == second


def test_many_steps_are_averaged_in_blocks():
    frame = pd.DataFrame([{"step": s, "rank": 1, "reward": s % 2} for s in range(1, 161)])
    figure = rank_figure(frame)
    assert f"[[{', '.join(['0.5'] * 80)}]]" in figure.replace(",", ", ").replace(",  ", ", ")
