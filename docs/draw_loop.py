"""Draw the figures docs/figures/loop-*.svg: acceptance by week and line, of `python -m benchmarks.loop`.

    python docs/draw_loop.py PROJECT [PROJECT ...]

Each PROJECT has the `runs/loop-users.csv` of its lines and seeds.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import pandas as pd

mpl.use("svg")
from matplotlib import pyplot as plt  # noqa: E402

FIGURES = Path(__file__).parent / "figures"
THEMES = {"light": ("#1f2328", "#57606a"), "dark": ("#e6edf3", "#9198a1")}  # colours of text
LINES = {  # name and colour
    "nothing": ("nothing", "#d55e00"),
    "live": ("live evidence", "#009e73"),
    "retraining": ("retraining", "#0072b2"),
    "both": ("both", "#cc79a7"),
}
STEPS = {
    "2022-04-01": "the audience changes",
    "2022-04-08": "retraining",
    "2022-04-15": "A/B test",
    "2022-04-22": "promoted",
}


def draw(runs: pd.DataFrame, theme: str) -> None:
    """Draw the mean of all seeds, and each seed in a pale colour."""
    ink, soft = THEMES[theme]
    colours = dict.fromkeys(("text.color", "axes.edgecolor", "xtick.color", "ytick.color"), ink)
    look = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "convrec", **colours}
    with mpl.rc_context(look):
        figure, axes = plt.subplots(figsize=(9, 3.8), layout="constrained")
        for line, (name, colour) in LINES.items():
            side = runs[runs["line"] == line]
            if side.empty:
                continue
            for _, own in side.groupby("seed"):
                axes.plot(own.groupby("week")["accepted"].mean(), color=colour, alpha=0.25, linewidth=1)
            mean = side.groupby("week")["accepted"].mean()
            axes.plot(mean, color=colour, linewidth=2.2, marker="o", markersize=5, label=name)
        for week, step in STEPS.items():
            axes.annotate(step, (week, 0), (0, 6), textcoords="offset points", ha="center", color=soft, fontsize=10)
        axes.set_ylim(0, None)
        axes.legend(frameon=False, ncols=len(LINES), loc="lower left", bbox_to_anchor=(0, 0.08))
        axes.set_title("Accepted items per answer of simulated users, by week", loc="left", fontsize=12)
        figure.savefig(FIGURES / f"loop-{theme}.svg", transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    every = pd.concat(pd.read_csv(Path(project) / "runs" / "loop-users.csv") for project in sys.argv[1:])
    for chosen in THEMES:
        draw(every, chosen)
