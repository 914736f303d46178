import numpy as np
import pandas as pd
import pytest

from convrec.data.conversations import transcript
from convrec.data.quarantine import Quarantine
from convrec.data.sources.dialogue import load_phrases
from convrec.data.sources.synthetic import CHANGED, KEPT, SHIFT_MONTH, Taste, World, embedded_catalog, simulate
from convrec.data.titles import fold

MONTHS = [f"2022-{month:02d}" for month in range(1, 13)]


def _world(seed: int = 1):
    quarantine = Quarantine()
    catalog = embedded_catalog(quarantine)
    assert not quarantine.rows
    return catalog, *simulate(catalog, seed, 300, MONTHS, 20)


@pytest.fixture(scope="module")
def world():
    return _world()


def test_the_same_seed_gives_the_same_world_and_another_one_does_not(world):
    _, rows, truth = world
    _, again, truth_again = _world()
    pd.testing.assert_frame_equal(rows, again)
    pd.testing.assert_frame_equal(truth, truth_again)
    assert _world(seed=2)[1]["messages"].tolist() != rows["messages"].tolist()


def test_rows_are_well_formed(world):
    catalog, rows, truth = world
    assert len(catalog) >= 400
    assert set(rows["date"].str.slice(0, 7)) == set(MONTHS)
    for row in rows.to_dict("records"):
        roles = [message["role"] for message in row["messages"]]
        assert roles == (["user", "assistant"] * 6)[: len(roles)] and len(roles) % 2 == 1
        seen = {fold(title) for title in row["seen_titles"]}
        assert row["groundtruth"] and all(fold(t["title"]) not in seen for t in row["groundtruth"])
        assert all(catalog.find(t["title"], t["year"]) is not None for t in row["groundtruth"])
    answers = rows.groupby("prompt_id").size()
    assert set(answers) == {1, 2}, "different answers to a prompt stay separate rows"
    assert len(set(rows["messages"].map(transcript))) > 0.99 * rows["prompt_id"].nunique(), "texts vary"
    assert all(len(oracle) == len(set(oracle)) == 20 for oracle in truth["oracle"])


def test_people_accept_what_has_high_utility(world):
    catalog, rows, truth = world
    drawn = World(catalog, 1, len(MONTHS))
    tastes = dict(zip(truth["prompt_id"], truth["taste"].map(Taste.from_json), strict=True))
    shares = []
    for row in rows.to_dict("records"):
        utility = drawn.utility(tastes[row["prompt_id"]])
        chosen = [catalog.find(t["title"], t["year"]) for t in row["groundtruth"]]
        shares.append((utility[:, None] < utility[chosen]).mean())
    assert np.mean(shares) > 0.9


def test_the_last_wish_counts(world, monkeypatch):
    _, usual, truth = world
    _, steady, steady_truth = _changed(monkeypatch, 0.0)
    _, changed, changed_truth = _changed(monkeypatch, 1.0)
    for rows, truths in ((steady, steady_truth), (changed, changed_truth)):
        pd.testing.assert_frame_equal(truths, truth)
        pd.testing.assert_series_equal(rows["groundtruth"], usual["groundtruth"])
    same = [messages == other for messages, other in zip(usual["messages"], changed["messages"], strict=True)]
    assert abs(np.mean(same) - CHANGED) < 0.08
    tastes = dict(zip(truth["prompt_id"], truth["taste"].map(Taste.from_json), strict=True))
    for row in changed.to_dict("records"):
        first, *_, last = (message["content"] for message in row["messages"] if message["role"] == "user")
        genres = tastes[row["prompt_id"]].genres
        wanted = first.split(",")[0]  # without the genres to avoid
        assert not [genre for genre in genres if f" {genre} movie" in wanted] and last != first
        assert set(load_phrases()["lists"]) & {
            message["content"] for message in row["messages"] if message["role"] == "assistant"
        }


def _changed(monkeypatch, share: float):
    monkeypatch.setattr("convrec.data.sources.synthetic.CHANGED", share)
    return _world()


def test_popularity_drifts_and_shifts_once(world):
    catalog, _, _ = world
    likeness = np.corrcoef(World(catalog, 1, len(MONTHS)).popularity)
    neighbours = np.diag(likeness, 1)
    assert np.argmin(neighbours) == SHIFT_MONTH - 1
    assert abs(neighbours[SHIFT_MONTH - 1] - KEPT) < 0.15
    assert np.delete(neighbours, SHIFT_MONTH - 1).min() > 0.95
