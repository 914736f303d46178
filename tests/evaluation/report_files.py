"""What the other stages leave behind for the stage `report`, in their shapes, and the page that it makes of that."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.conversations import STEP_COLUMNS, read_rows, write_rows
from convrec.data.quarantine import Quarantine
from convrec.data.schemas import write_catalog
from convrec.data.statistics import describe
from convrec.pipeline.memory import with_settings
from convrec.pipeline.stages import report
from convrec.project.config.params import load_params
from convrec.project.paths import Paths
from convrec.project.results import write_json, write_plot
from tests.rows import make_items, make_row
from tests.small_project import ROOT

SYSTEMS = ("popularity", "zero_shot", "sft", "rank_grpo", "oracle", "sft_free", "rank_grpo_free", "item_knn")
HOSTILE = "<script>alert('x')</script> & {{ 7 * 7 }} \"quoted\""
HOSTILE_LINE = "<img src=x onerror=alert(1)> (1999)"
SFT_LIST = f"Heat (1995)\nUp (2009)\n{HOSTILE_LINE}\nAlien (1979)"


MESSAGES = [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": "Any era?"}]
FILMS = make_items("Heat (1995) | Dune (1984) | Dune (2021) | Up (2009) | Alien (1979)")
CATALOG = Catalog([replace(film, metadata={"genres": "drama"}) for film in FILMS])


def _scores(value, cutoffs):
    metrics = {f"{name}_at_{k}": value + k / 1000 for name in ("recall", "ndcg") for k in cutoffs}
    metrics["in_catalog"] = 0.9
    intervals = {name: {"low": mean - 0.01, "high": mean + 0.01} for name, mean in metrics.items()}
    quality = {"format": 0.75, "duplicates": 0.125, "seen": 0.0625, "length": 19.5}
    beside = {"mrr": 0.5, "novelty": 7.25, "coverage": 0.875}
    intervals["mrr"] = {"low": 0.4, "high": 0.6, "n": 1234}
    return {**metrics, **quality, **beside, "intervals": intervals}


def _demonstration_metrics(cutoffs):
    steps = {step: _scores(0.25, cutoffs) for step in STEP_COLUMNS}
    kinds = {"exact": 0.8, "normalised": 0.0625, "fuzzy": 0.025, "truncated": 0.0125}
    return {
        "train_prompts": 2,
        "held_out": {"rows": 3, "prompts": 2, **steps},
        "validation": {"rows": 3, "prompts": 2, **steps},
        "train_answers": {"empty": 0.0, "fewer": 0.125, "exact": 0.875, "more": 0.0},
        "train_titles": {"mentions": 1234.0, "before": 0.8, "after": 0.9, **kinds},
        "train_sources": {**kinds, "semantic": 0.05, "collaborative": 0.05},
        "train_ratings": {"asked": 4321, "missing": 17},
        "popularity_distance": {"collaborative": 0.375, "adjust": 0.25},
        "collaborative": {"weights": {"remap": 0.75, "item_knn": 0.5}},
        "adjust": {"best_epoch": 1, "epochs": 1},
    }


def _slices(headline):
    def scores(mean):
        return {headline: {"mean": mean, "low": mean - 0.02, "high": mean + 0.03, "n": 1000}}

    def part(rows, mean):
        return {"n_rows": rows, "n_prompts": rows - 100, "sft": scores(mean), "rank_grpo": scores(mean + 0.1)}

    kinds = {"mentions": ("0", "1", "2", "3_or_more"), "month": ("2022-12",), "new_items": ("known", "new")}
    return {kind: {name: part(1000 - i, 0.2 - 0.01 * i) for i, name in enumerate(own)} for kind, own in kinds.items()}


def write_inputs(paths, params, dated, systems, without, chosen):
    """Write what the other stages leave behind, in their shapes."""
    cutoffs = params.common.cutoffs
    headline = f"ndcg_at_{max(cutoffs)}"
    paths.processed.mkdir(parents=True)
    write_catalog(CATALOG, paths.catalog)
    splits = {}
    for name, month in (("train", "10"), ("validation", "11"), ("test", "12")):
        dates = [f"2022-{month}-0{day}" if dated else "" for day in (1, 2, 3)]
        accepted = [[("Heat", 1995)], [("Alien", 1979)], [("Up", 2009)]]
        rows = zip(["p-1", "p-1", "p-2"], accepted, dates, strict=True)
        said = {"messages": MESSAGES, "seen_titles": ["Up"]}
        splits[name] = pd.DataFrame([make_row(prompt, liked, date=date, **said) for prompt, liked, date in rows])
        write_rows(splits[name], paths.split(name))
    quarantine = Quarantine()
    quarantine.add("catalog", 3, "year is no number", "Untitled")
    quarantine.write(paths.quarantine)
    counts = {name: {"rows": 3, "prompts": 2} for name in ("train", "validation", "test")}
    statistics, _ = describe({name: read_rows(paths.split(name)) for name in splits}, CATALOG)
    shares = {"catalog": 0.0625, "rows": 0.0}
    problems = {"outside_catalog": 7, "seen_truth": 0, "duplicate_rows": 0, "leaks": 0}
    data = {"catalog": len(CATALOG), "quarantined_share": shares, "problems": problems, **counts}
    data["statistics"] = statistics
    write_json(paths.results("data"), data)
    write_json(paths.results("demonstrations"), _demonstration_metrics(cutoffs))
    lists = {column: [SFT_LIST, "Heat (1995)"] for column in STEP_COLUMNS.values()}
    write_rows(pd.DataFrame({"prompt_id": ["p-1", "p-2"], **lists}), paths.demonstration("validation"))
    shares = {"ground_truth": 0.5, "collaborative": 0.5, "adjust": 0.5}
    write_plot(paths.plot("popularity"), [{"bucket": bucket, **shares} for bucket in (1, 2)])
    write_json(paths.metrics("sft"), {"step": 20, "loss": 1.5, "validation_ndcg": 0.25})
    write_json(paths.metrics("rank_grpo"), {"chosen_step": chosen, "hits": 2.5, "validation": {headline: 0.3}})
    values = {name: _scores(0.1 * place, cutoffs) for place, name in enumerate(systems, start=1)}
    gains = {
        "rank_grpo_over_sft": {"mean": 0.0123, "low": -0.0011, "high": 0.0257, "n": 1234, "p": 0.0721},
        "rank_grpo_over_popularity": {"mean": 0.2, "low": 0.15, "high": 0.25, "n": 1234, "p": 0.0005},
    }
    if "rank_grpo_free" in systems:
        of_constraint = {"mean": 0.03, "low": 0.02, "high": 0.04, "n": 1234, "p": 0.0005}
        gains["rank_grpo_over_rank_grpo_free"] = of_constraint
    settings = {"shrinkage": 10.0, "nearest": 200, "dislike_weight": 0.5}
    baselines = {
        "popularity": {"settings": {}, f"validation_{headline}": 0.125},
        "item_knn": {"settings": settings, f"validation_{headline}": 0.0625},
    }
    evaluation = {"n_rows": 1234, "n_prompts": 2, **values, f"paired_{headline}": gains, "slices": _slices(headline)}
    evaluation |= {"baselines": baselines, "best_baseline": "popularity"}
    write_json(paths.results("evaluate"), {key: value for key, value in evaluation.items() if key not in without})
    for name in systems:
        first = "A free list (1999)" if name.endswith("_free") else SFT_LIST
        responses = {"prompt_id": ["p-1", "p-2"], "response": [first, ""]}
        write_rows(pd.DataFrame(responses), paths.predictions / f"{name}.parquet")
    write_plot(
        paths.plot("sft"),
        [{"step": 10, "loss": 0.2, "validation_ndcg": None}, {"step": 20, "loss": None, "validation_ndcg": 0.3}],
    )
    write_plot(paths.plot("reward"), [{"step": step, "hits": step, "kl": 0.0, "entropy": 0.5} for step in range(1, 61)])
    ranks = range(1, params.common.list_length + 1)
    rewards = [{"step": s, "rank": r, "reward": s / r} for s in range(1, 61) for r in ranks]
    write_plot(paths.plot("reward_by_rank"), rewards)
    scores = {f"{metric}_at_{k}": k / 100 for metric in ("recall", "ndcg") for k in cutoffs}
    lists = {"in_catalog": 1.0, "format": 0.9}
    write_plot(paths.plot("validation"), [{"step": step, **scores, **lists} for step in (0, 20, 40, 60)])


def report_params(source="synthetic"):
    """Return the shipped parameters, with another source of data."""
    return with_settings(load_params(ROOT / "params.yaml"), {"data.source": source, "data.path": "somewhere"})


def build_report(root, params, *, dated=True, systems=SYSTEMS, empty=(), without=(), chosen=40):
    """Return the paths and the page of a report.

    Plots in `empty` have no row, `without` are keys of the evaluation, and `chosen` is the step that was kept.
    """
    paths, artifacts = Paths(root), []
    write_inputs(paths, params, dated, systems, without, chosen)
    for name in empty:
        write_plot(paths.plot(name), [])
    report.run(params, paths, SimpleNamespace(log_artifact=artifacts.append))
    assert artifacts == [paths.report]
    return paths, paths.report.read_text(encoding="utf-8")
