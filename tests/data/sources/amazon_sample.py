"""A small folder in the layout of MiniOneRec's data, with its columns and its quoting."""

import csv
from pathlib import Path

import numpy as np

NAME = "Industrial_and_Scientific_5_2016-10-2018-11"
COLUMNS = ["user_id", "history_item_title", "item_title", "history_item_id", "item_id", "history_item_sid", "item_sid"]
TITLES = [f'Drill "Model {n}", 1/{n}-Inch (Pack of {n})' for n in range(2, 26)]
TITLES += [
    'Industrial & Scientific" />',
    'Industrial & Scientific" />',
    "Tape, 10&prime; x 5' long",
    "Gauge 2012 (2012)",
]


def write_sample(folder: Path, users: int = 60, length: int = 9, seed: int = 3) -> Path:
    """Write `info`, `train`, `valid` and `test`: people walk through the catalog, and buy an item again at times.

    The moments of all people are split 8:1:1 in order of time, and histories have at most four items.
    """
    rng = np.random.default_rng(seed)
    sids = [f"<a_{n % 5}><b_{n % 7}><c_{n}>" for n in range(len(TITLES))]
    moments = []
    for user in range(users):
        at, step, bought = int(rng.integers(len(TITLES))), int(rng.integers(1, 3)), []
        for time in range(length):
            if time:
                ids = bought[-4:]
                titles = [TITLES[n] for n in ids]
                cells = (f"A{user}", titles, TITLES[at], ids, at, [sids[n] for n in ids], sids[at])
                moments.append((time + rng.random(), cells))
            bought.append(at)
            at = (at + step) % len(TITLES) if rng.random() < 0.9 else at
    rows = [cells for _, cells in sorted(moments, key=lambda moment: moment[0])]
    ends = {"train": (0, 0.8), "valid": (0.8, 0.9), "test": (0.9, 1)}
    for split, (first, end) in ends.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        with (folder / split / f"{NAME}.csv").open("w", newline="", encoding="utf-8") as file:
            own = csv.writer(file)
            own.writerow(COLUMNS)
            own.writerows(rows[int(first * len(rows)) : int(end * len(rows))])
    (folder / "info").mkdir(exist_ok=True)
    lines = (f"{sid}\t{title}\t{n}\n" for n, (sid, title) in enumerate(zip(sids, TITLES, strict=True)))
    (folder / "info" / f"{NAME}.txt").write_text("".join(lines), encoding="utf-8")
    return folder
