"""A project whose users change in the sixth week, with all that was recorded of them."""

import shutil
from datetime import datetime
from pathlib import Path

import pandas as pd
import pytest

from convrec.data.conversations import write_rows
from convrec.data.sources.synthetic import SHIFT_MONTH
from convrec.project.paths import Paths
from convrec.service.feedback.store import FeedbackStore
from tests.service.monitoring.simulated import START, WEEK, Simulation
from tests.small_project import ROOT

ANSWERS = 220  # a week
CHANGE = 5  # the first week of the new audience


def end_of(week: int) -> datetime:
    """Return the time when a week ends."""
    return START + (week + 1) * WEEK


@pytest.fixture(scope="session")
def watched_project(make_store, tmp_path_factory) -> Path:
    """Parameters, training data and feedback of six weeks; the store has no champion."""
    folder = tmp_path_factory.mktemp("watched")
    for name in ("params.yaml", "monitoring.yaml"):
        shutil.copy(ROOT / name, folder)
    world, paths = Simulation(1), Paths(folder)
    write_rows(pd.DataFrame(world.training(500)), paths.split("train"))
    world.catalog.to_frame().to_parquet(paths.catalog)
    store = FeedbackStore(f"sqlite:///{folder / 'feedback' / 'feedback.db'}")
    for week in range(CHANGE + 1):
        month = SHIFT_MONTH if week >= CHANGE else SHIFT_MONTH - 1
        store.write(*world.week(week, month, ANSWERS))
    store.close()
    make_store(folder)
    return folder
