from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest

from convrec.data.exposure import LEAST_PROPENSITY, MOST_ITEMS, by_month, describe_exposure, propensities

MAY, JUNE = datetime(2026, 5, 31, 23, 59, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)


def _shown(*rows):
    names = ["time", "item_id", "rank", "accepted", "is_explored"]
    kinds = [pl.Datetime("us", "UTC"), pl.String, pl.Int64, pl.Boolean, pl.Boolean]
    return pl.DataFrame(rows, schema=dict(zip(names, kinds, strict=True)), orient="row")


def test_months_are_those_of_utc_and_ranks_are_counted_apart():
    shown = _shown(
        (MAY, "up", 1, True, False),
        (MAY, "up", 1, False, False),
        (MAY, "up", 2, False, False),
        (JUNE, "up", 1, True, False),
        (JUNE, "heat", 2, False, True),
    )
    assert by_month(shown).rows() == [
        ("2026-05", "up", 1, 2, 1),
        ("2026-05", "up", 2, 1, 0),
        ("2026-06", "heat", 2, 1, 0),
        ("2026-06", "up", 1, 1, 1),
    ]


def _explored(*counts):
    """Rows of explored answers: for each rank the numbers shown and accepted."""
    return [
        (MAY, f"i{number}", rank, number < accepted, True)
        for rank, (total, accepted) in enumerate(counts, start=1)
        for number in range(total)
    ]


def test_propensities_are_relative_to_the_first_rank_and_never_rise():
    shown = _shown(*_explored((40, 20), (40, 10), (40, 12), (400, 1)))
    assert propensities(shown) == {1: 1.0, 2: 0.5, 3: 0.5, 4: LEAST_PROPENSITY}


@pytest.mark.parametrize(
    "rows", [[], _explored((40, 10), (40, 9)), _explored((40, 0), (40, 30)), [(MAY, "a", 1, True, False)] * 50]
)
def test_without_enough_explored_answers_there_is_no_weighted_rate(rows):
    shown = _shown(*rows)
    assert propensities(shown) == {}
    found = describe_exposure(shown)
    assert all(rank["propensity"] is None for rank in found["by_rank"])
    assert all(item["weighted_rate"] is None for item in found["by_item"])


def test_acceptance_by_rank_and_item_by_hand():
    shown = _shown(*_explored((40, 20), (40, 10)), (JUNE, "a", 2, True, False), (JUNE, "a", 2, False, False))
    found = describe_exposure(shown)
    assert (found["shown"], found["accepted"], found["explored"]) == (82, 31, 80)
    assert found["by_rank"] == [
        {"rank": 1, "shown": 40, "accepted": 20, "rate": 0.5, "propensity": 1.0},
        {"rank": 2, "shown": 42, "accepted": 11, "rate": 11 / 42, "propensity": 0.5},
    ]
    assert len(found["by_item"]) == MOST_ITEMS
    assert found["by_item"][0] == {"item_id": "a", "shown": 2, "accepted": 1, "rate": 0.5, "weighted_rate": 1.0}
    assert found["by_item"][1] == {"item_id": "i0", "shown": 2, "accepted": 2, "rate": 1.0, "weighted_rate": 1.5}


def test_the_weighted_rate_finds_the_items_that_the_order_hides():
    """Two items of equal appeal, one always shown low: its rate is lower, its weighted rate is not."""
    rng, examined, appeal = np.random.default_rng(3), np.array([1.0, 0.6, 0.3]), {"a": 0.5, "b": 0.5, "c": 0.2}
    rows = []
    for number in range(12_000):
        is_explored = number % 4 == 0
        order = rng.permutation(list(appeal)) if is_explored else ["a", "c", "b"]
        rows += [
            (MAY, item, rank + 1, bool(rng.random() < examined[rank] * appeal[item]), is_explored)
            for rank, item in enumerate(order)
        ]
    shown = _shown(*rows)
    assert np.allclose(list(propensities(shown).values()), examined, atol=0.06)
    items = {item["item_id"]: item for item in describe_exposure(shown)["by_item"]}
    assert items["b"]["rate"] < 0.5 * items["a"]["rate"]
    for item, truth in appeal.items():
        assert items[item]["weighted_rate"] == pytest.approx(truth, abs=0.06)
