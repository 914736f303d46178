from datetime import UTC, datetime

import polars as pl

from convrec.data.exposure import MOST_ITEMS, by_month, describe_exposure

MAY, JUNE = datetime(2026, 5, 31, 23, 59, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)


def _shown(*rows):
    kinds = {"time": pl.Datetime("us", "UTC"), "item_id": pl.String, "rank": pl.Int64, "accepted": pl.Boolean}
    return pl.DataFrame(rows, schema=kinds, orient="row")


def test_months_are_those_of_utc_and_ranks_are_counted_apart():
    shown = _shown(
        (MAY, "up", 1, True),
        (MAY, "up", 1, False),
        (MAY, "up", 2, False),
        (JUNE, "up", 1, True),
        (JUNE, "heat", 2, False),
    )
    assert by_month(shown).rows() == [
        ("2026-05", "up", 1, 2, 1),
        ("2026-05", "up", 2, 1, 0),
        ("2026-06", "heat", 2, 1, 0),
        ("2026-06", "up", 1, 1, 1),
    ]


def test_acceptance_by_rank_and_item_by_hand():
    once = [(MAY, f"i{number:02}", 1, number < 20) for number in range(40)]
    found = describe_exposure(_shown(*once, (JUNE, "a", 2, True), (JUNE, "a", 2, False), (JUNE, "b", 2, False)))
    assert (found["shown"], found["accepted"]) == (43, 21)
    assert found["by_rank"] == [
        {"rank": 1, "shown": 40, "accepted": 20, "rate": 0.5},
        {"rank": 2, "shown": 3, "accepted": 1, "rate": 1 / 3},
    ]
    assert len(found["by_item"]) == MOST_ITEMS
    assert found["by_item"][:2] == [
        {"item_id": "a", "shown": 2, "accepted": 1, "rate": 0.5},
        {"item_id": "b", "shown": 1, "accepted": 0, "rate": 0.0},
    ]
    nothing = {"shown": 0, "accepted": 0, "by_rank": [], "by_item": []}
    assert describe_exposure(_shown()) == nothing
