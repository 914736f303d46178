"""Team-draft interleaving: order, equal picks, fair coins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.serving.interleaving import team_draft

ITEMS = [f"item {number}" for number in range(12)]
_rankings = st.permutations(ITEMS)


@given(_rankings, _rankings, st.integers(0, 12), st.text(max_size=8))
def test_each_side_picks_its_best_remaining_items_and_as_many_as_the_other(champion, challenger, length, answer):
    picks = team_draft(champion, challenger, length, answer)
    assert len(picks) == length and len({pick.item_id for pick in picks}) == length
    for team, ranking in (("champion", champion), ("challenger", challenger)):
        own = [ranking.index(pick.item_id) for pick in picks if pick.team == team]
        assert own == sorted(own)
    for place, pick in enumerate(picks):
        ranking = champion if pick.team == "champion" else challenger
        before = {one.item_id for one in picks[:place]}
        assert set(ranking[: ranking.index(pick.item_id)]) <= before
        so_far = [one.team for one in picks[: place + 1]]
        assert abs(so_far.count("champion") - so_far.count("challenger")) <= 1


def test_the_same_answer_is_drafted_alike():
    drafts = [team_draft(ITEMS, ITEMS[::-1], 10, f"answer {number}") for number in (1, 1, 2, 3, 4)]
    assert drafts[0] == drafts[1]
    assert any(draft != drafts[0] for draft in drafts[2:])


def test_the_coin_is_fair():
    """Of 2,000 first picks, and of 2,000 third picks, half are the champion's (five standard deviations: 112)."""
    drafts = [team_draft(ITEMS, ITEMS[::-1], 3, f"{number:032x}") for number in range(2000)]
    for place in (0, 2):
        assert sum(draft[place].team == "champion" for draft in drafts) == pytest.approx(1000, abs=112)


def test_equal_rankings_give_that_ranking():
    picks = team_draft(ITEMS, ITEMS, 10, "x")
    assert [pick.item_id for pick in picks] == ITEMS[:10]
    assert sorted(pick.team for pick in picks) == ["challenger"] * 5 + ["champion"] * 5


def test_a_side_without_items_ends_the_draft():
    assert team_draft([], ITEMS, 5, "x") == []
    picks = team_draft(["a"], ["b", "c", "d"], 4, "x")
    assert len(picks) in (1, 2) and {pick.item_id for pick in picks} <= {"a", "b"}
