"""Draw the figures of README.md from a finished demo: `make docs-figures`.

The demo's metrics are copied to docs/figures/demo.json. The picture and the table of README.md are made from that copy
alone, so that a run on another machine changes neither until this command is called again.
"""

import argparse
import csv
import json
import re
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt  # noqa: E402

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
SNAPSHOT = FIGURES / "demo.json"
TABLE = re.compile(r"(<!-- demo table -->\n).*?(<!-- end of demo table -->)", re.DOTALL)

NAMES = {
    "oracle": "Oracle (knows the simulated tastes)",
    "rank_grpo": "Rank-GRPO",
    "fusion": "Fusion",
    "neighbours": "Neighbours",
    "item_knn": "Item-kNN",
    "ease": "EASE",
    "als": "ALS",
    "sft": "SFT",
    "popularity": "Popularity",
}
OURS = ("rank_grpo", "sft")
IN_TABLE = ("rank_grpo", "sft", "fusion", "neighbours", "item_knn", "popularity", "oracle")
THEMES = {
    "light": {"ink": "#1f2328", "muted": "#8c959f", "ours": "#0b6bcb"},
    "dark": {"ink": "#e6edf3", "muted": "#768390", "ours": "#58a6ff"},
}


def take_snapshot(root: Path) -> dict[str, Any]:
    """Return what the figures need of the demo in `root`.

    NDCG@20 with its interval, Recall@20 and the share of titles in the catalog by system; the paired difference of
    Rank-GRPO to the best baseline; validation NDCG@20 by training step.
    """
    metrics = json.loads((root / "results" / "evaluate.json").read_text())
    with (root / "plots" / "validation.csv").open() as lines:
        steps = [(int(line["step"]), float(line["ndcg_at_20"])) for line in csv.DictReader(lines)]
    systems = {}
    for name in NAMES:
        values = metrics[name]
        interval = values["intervals"]["ndcg_at_20"]
        systems[name] = {key: values[key] for key in ("ndcg_at_20", "recall_at_20", "in_catalog")}
        systems[name]["interval"] = [interval["low"], interval["high"]]
    best = metrics["best_baseline"]
    return {
        "rows": metrics["n_rows"],
        "best_baseline": best,
        "over_best_baseline": metrics["paired_ndcg_at_20"][f"rank_grpo_over_{best}"],
        "systems": systems,
        "validation_ndcg_at_20": steps,
    }


def table(demo: dict[str, Any]) -> str:
    """Return the table of README.md in Markdown, with the sentence below it."""
    lines = ["| system | NDCG@20, 95 % interval | Recall@20 |", "|---|---|---|"]
    for name in IN_TABLE:
        values = demo["systems"][name]
        low, high = values["interval"]
        label = NAMES[name]
        if name == demo["best_baseline"]:
            label += " (the best baseline)"
        cells = [label, f"{values['ndcg_at_20']:.3f} ({low:.3f} to {high:.3f})", f"{values['recall_at_20']:.3f}"]
        if name == OURS[0]:
            cells = [f"**{cell}**" for cell in cells]
        lines.append("| " + " | ".join(cells) + " |")
    gain = demo["over_best_baseline"]
    best = NAMES[demo["best_baseline"]].lower()
    return (
        "\n".join(lines)
        + f"\n\nOver {best}: {gain['mean']:+.3f}, 95 % interval {gain['low']:+.3f} to {gain['high']:+.3f}, paired over"
        + f" {demo['rows']:,} test rows.\n"
    )


def draw(demo: dict[str, Any], path: Path, ink: str, muted: str, ours: str) -> None:
    """Write an SVG to `path`: NDCG@20 by system with intervals, and the validation NDCG@20 of Rank-GRPO by step."""
    settings = {
        "svg.hashsalt": "convrec",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 11,
        "text.color": ink,
        "axes.edgecolor": muted,
        "axes.labelcolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
    }
    with plt.rc_context(settings):
        figure, (bars, curve) = plt.subplots(1, 2, figsize=(9.6, 3.4), width_ratios=(1.25, 1), layout="constrained")
        names = sorted(demo["systems"], key=lambda name: demo["systems"][name]["ndcg_at_20"])
        values = [demo["systems"][name]["ndcg_at_20"] for name in names]
        low, high = zip(*(demo["systems"][name]["interval"] for name in names), strict=True)
        errors = [
            [value - edge for value, edge in zip(values, low, strict=True)],
            [edge - value for value, edge in zip(values, high, strict=True)],
        ]
        colours = [ours if name in OURS else muted for name in names]
        filled = ["none" if name == "oracle" else colour for name, colour in zip(names, colours, strict=True)]
        bars.barh(range(len(names)), values, height=0.62, color=filled, edgecolor=colours)
        bars.errorbar(values, range(len(names)), xerr=errors, fmt="none", ecolor=ink, elinewidth=1.2)
        for place, (value, edge) in enumerate(zip(values, high, strict=True)):
            bars.text(edge + 0.012, place, f"{value:.3f}", va="center", fontsize=10)
        bars.set_yticks(range(len(names)), [NAMES[name].split(" (")[0] for name in names])
        bars.set_xlim(0, max(high) * 1.14)
        bars.set_title("Test NDCG@20, simulated users", loc="left", fontsize=12)
        bars.xaxis.set_visible(False)
        bars.tick_params(length=0)
        steps, ndcg = zip(*demo["validation_ndcg_at_20"], strict=True)
        curve.plot(steps, ndcg, color=ours, linewidth=2, marker="o", markersize=4)
        curve.annotate("SFT", (steps[0], ndcg[0]), (2, -18), textcoords="offset points")
        curve.annotate("Rank-GRPO", (steps[-1], ndcg[-1]), (-8, -18), textcoords="offset points", ha="right")
        curve.set_ylim(0, max(ndcg) * 1.15)
        curve.set_title("Validation NDCG@20 by step of Rank-GRPO", loc="left", fontsize=12)
        curve.tick_params(length=0)
        for axes in (bars, curve):
            axes.spines[["top", "right"]].set_visible(False)
        bars.spines["bottom"].set_visible(False)
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(figure)


def write(demo: dict[str, Any], root: Path) -> None:
    """Write the pictures and the table that README.md shows, below `root`."""
    for theme, colours in THEMES.items():
        draw(demo, root / "docs" / "figures" / f"demo-{theme}.svg", **colours)
    readme = root / "README.md"
    readme.write_text(TABLE.sub(lambda match: match[1] + table(demo) + match[2], readme.read_text()))


def main() -> None:
    """Copy the metrics of the last demo, and redraw."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    demo = take_snapshot(ROOT)
    SNAPSHOT.write_text(json.dumps(demo, indent=1) + "\n")
    write(demo, ROOT)


if __name__ == "__main__":
    main()
