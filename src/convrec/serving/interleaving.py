"""Team-draft interleaving: one list from two rankings, in which each item is credited to the side that picked it."""

import random
from collections.abc import Sequence
from typing import NamedTuple

CHAMPION, CHALLENGER = "champion", "challenger"


class Pick(NamedTuple):
    """One item of the interleaved list, and the side that picked it."""

    item_id: str
    team: str


def team_draft(champion: Sequence[str], challenger: Sequence[str], length: int, answer_id: str) -> list[Pick]:
    """Return at most `length` picks of both rankings (Radlinski, Kurup and Joachims, 2008, algorithm 2).

    In each round, a fair coin decides which side picks first; then each side picks its best item that is not in the
    list yet. The draft ends as soon as one side has no such item. The coins follow from the answer's id, so the same
    answer is drafted in the same way again.
    """
    coin = random.Random(f"team draft {answer_id}")
    rankings = {CHAMPION: champion, CHALLENGER: challenger}
    picks: list[Pick] = []
    taken: set[str] = set()
    turns: list[str] = []
    while len(picks) < length:
        if not turns:
            turns = [CHAMPION, CHALLENGER] if coin.random() < 0.5 else [CHALLENGER, CHAMPION]
        best = {team: next((item for item in ranking if item not in taken), None) for team, ranking in rankings.items()}
        if None in best.values():
            break
        team = turns.pop(0)
        item = str(best[team])
        picks.append(Pick(item, team))
        taken.add(item)
    return picks
