"""The tables of `benchmarks.pretrained`: quality on test, paired differences, and costs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from convrec.evaluation.comparison import mean_intervals, paired_interval
from convrec.evaluation.headline import bounds
from convrec.evaluation.systems import BASELINES
from convrec.project.results import read_json, write_json
from convrec.project.table import TextTable

KINDS = ("items", "text", "embedded")
MODELS = ("base", "sft", "rank_grpo")
LIKES = {"0": (0, 1), "1 to 4": (1, 5), "5 to 19": (5, 20), "20 or more": (20, np.inf)}  # of an item, in training
RARE = 5  # likes
SEED, SAMPLES = 17, 2000  # of intervals
Found = dict[str, Any]


def report(out: Path) -> str:
    """Return the tables of what is below `out`; write them to `tables.md`, with all figures to `pretrained.json`."""
    found = {path.parent.name: read_json(path) for path in sorted(out.glob("*/result.json"))}
    order = [*BASELINES, *(f"{model}_{end}" for model in MODELS for end in ("unguided", "guided"))]

    def place(path: Path) -> int:
        return order.index(path.stem.removesuffix(".hits"))

    tables = []
    for data in sorted({case.partition("-")[0] for case in found}):
        scores = {
            (case, path.stem): path
            for case in (data, *(f"{data}-{kind}" for kind in KINDS))
            for path in sorted((out / case / "scores" / "test").glob("*.parquet"), key=place)
            if not path.stem.endswith(".hits")
        }
        if scores:
            tables += [_quality(data, scores, found), _gains(data, scores, found)]
    cases = {case: own for case, own in found.items() if "-" in case}
    tables += [_costs(cases)] if cases else []
    write_json(out / "pretrained.json", found | {"tables": [table.markdown() for table in tables]})
    text = "\n".join(table.markdown() for table in tables) + "\n"
    (out / "tables.md").write_text(text)
    return text


def _quality(data: str, scores: Mapping[tuple[str, str], Path], found: Mapping[str, Found]) -> TextTable:
    """Return the test scores of every system, on all rows, on rare ground truth, and by likes of the items."""
    header = ["system", "NDCG@20", "R@20", "validation NDCG@20", f"NDCG@20, fewer than {RARE} likes"]
    rows = []
    for (case, system), path in scores.items():
        table, hits = pd.read_parquet(path), pd.read_parquet(path.with_suffix(".hits.parquet"))
        validation = found[case].get(f"{system}_validation", {}).get("ndcg_at_20")
        rare = table[table["likes"] < RARE]
        cells = [_mean(table, "ndcg_at_20"), f"{table['recall_at_20'].mean():.3f}"]
        cells += ["" if validation is None else f"{validation:.4f}", _mean(rare, "ndcg_at_20")]
        parts = [hits[(hits["likes"] >= low) & (hits["likes"] < high)]["hit"] for low, high in LIKES.values()]
        rows.append([_name(case, system), *cells, *(f"{part.mean():.3f}" if len(part) else "" for part in parts)])
    few = f"{len(rare)} with fewer than {RARE} training likes of the ground truth"
    sizes = [f"{name} ({len(part)})" for name, part in zip(LIKES, parts, strict=True)]
    header += [f"recall of items with {name} likes" for name in sizes]
    return TextTable(header, rows, f"{data}, test, {len(table)} rows, {few}; constrained lists, 95 % intervals")


def _mean(table: pd.DataFrame, metric: str) -> str:
    if table.empty:
        return ""
    interval = mean_intervals(table, [metric], SAMPLES, SEED)[metric]
    return f"{interval.mean:.4f} {bounds(interval._asdict(), '.3f')}"


def _name(case: str, system: str) -> str:
    kind = case.partition("-")[2]
    return f"{kind}: {system.replace('_', ' ')}" if kind else BASELINES[system]


def _gains(data: str, scores: Mapping[tuple[str, str], Path], found: Mapping[str, Found]) -> TextTable:
    """Return paired differences of test NDCG@20."""
    pairs: list[tuple[tuple[str, str], tuple[str, str]]] = []
    known = {name: found[data].get(f"{name}_validation", {}).get("ndcg_at_20", -1.0) for name in BASELINES}
    best = max(known, key=lambda name: known[name])
    for kind in KINDS:
        case = f"{data}-{kind}"
        pairs += [((case, f"{own}_guided"), (case, f"{own}_unguided")) for own in MODELS]
        for end in ("guided", "unguided"):
            pairs += [((case, f"rank_grpo_{end}"), (case, f"sft_{end}"))]
            own = [f"{model}_{end}" for model in MODELS[1:]]
            pairs += [((case, system), (data, best)) for system in own]
            others = [f"{data}-{other}" for other in ("text", "embedded") if kind == "items" or other != "text"]
            pairs += [((case, system), (other, system)) for other in others if other != case for system in own]
    rows = []
    for one, other in pairs:
        if one not in scores or other not in scores:
            continue
        tables = [pd.read_parquet(scores[key]) for key in (one, other)]
        if len(tables[0]) == len(tables[1]):  # `--smoke` takes the first rows
            gain = paired_interval(*tables, "ndcg_at_20", SAMPLES, SEED)
            rows.append([_name(*one), _name(*other), f"{gain.mean:+.4f} {bounds(gain._asdict(), '+.4f')}"])
    return TextTable(["system", "over", "NDCG@20"], rows, f"{data}, test, paired differences", left=2)


def _costs(found: Mapping[str, Found]) -> TextTable:
    """Return the seconds and the peak of every part, the figures of Rank-GRPO's steps, and lists per second."""
    figures = pd.json_normalize(list(found.values())).T
    shown = figures[figures.index.str.contains(r"^(?:seconds|peak_gib|\w+_training)\.|_per_second$")]
    shown = shown[~shown.index.str.contains("validation")]
    rows = [[name, *("" if pd.isna(cell) else f"{cell:.4g}" for cell in row)] for name, *row in shown.itertuples()]
    devices = ", ".join(sorted({own["device"] for own in found.values()}))
    return TextTable(["", *found], rows, f"Cost; seconds of a step are medians; {devices}")
