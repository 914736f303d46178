"""Draw docs/figures/loop.png: acceptance by week and line, of `python -m benchmarks.loop`.

    python docs/draw_loop.py PROJECT [PROJECT ...]

Each PROJECT has the `runs/loop-users.csv` of its lines and seeds.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd

PICTURE = Path(__file__).parent / "figures" / "loop.png"
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


def draw(projects: list[str]) -> None:
    """Draw the mean of all seeds, and each seed in a pale colour."""
    runs = pd.concat(pd.read_csv(Path(project) / "runs" / "loop-users.csv") for project in projects)
    with mpl.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(figsize=(9, 3.8), layout="constrained")
        for line, (name, colour) in LINES.items():
            side = runs[runs["line"] == line]
            for _, own in side.groupby("seed"):
                axes.plot(own.groupby("week")["accepted"].mean(), color=colour, alpha=0.25, linewidth=1)
            mean = side.groupby("week")["accepted"].mean()
            axes.plot(mean, color=colour, linewidth=2.2, marker="o", markersize=5, label=name)
        for week, step in STEPS.items():
            axes.annotate(
                step, (week, 0), (0, 6), textcoords="offset points", ha="center", color="#57606a", fontsize=10
            )
        axes.set_ylim(0, None)
        axes.legend(frameon=False, ncols=len(LINES), loc="lower left", bbox_to_anchor=(0, 0.08))
        axes.set_title("Accepted items per answer, by week", loc="left", fontsize=12)
        figure.savefig(PICTURE, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    draw(sys.argv[1:])
