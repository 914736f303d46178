"""How often lists follow a user who changes their mind, on conversations of the embedded world's simulator.

Each user asks for one thing, gets a list, and then asks for something of other genres. The share of the first five
films that have a genre of the last wish is compared with the share for the last wish alone. Then each user excludes
the most frequent genre of the list that they did not ask for; its share is measured before and after. No conversation
is of the training data: all have random numbers of their own.

    python -m benchmarks.follow_ups [--model FOLDER_OR_NAME ...] [--users 300]
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np

from convrec.data.sources.dialogue import LISTS, write_change_of_mind, write_conversation
from convrec.data.sources.synthetic import World, make_request
from convrec.registry.recommenders import open_recommender

SEED, NUM_MONTHS = 2024, 12
TOP = 5
EXCLUSIONS = ("no {} please", "the same without {}", "fine, but nothing with {}", "please leave out the {} ones")


def share_with(world: World, lists: Sequence[Sequence[object]], wanted: Sequence[Sequence[str]]) -> np.ndarray:
    """Return, for each list, the share of its first `TOP` films with one of the wanted genres."""
    indices = [world.catalog.indices_of_lines(map(str, listed[:TOP])) for listed in lists]
    return np.array(
        [
            np.mean([bool(world.genres[film] & set(genres)) for film in films])
            for films, genres in zip(indices, wanted, strict=True)
        ]
    )


def unasked_genre(world: World, listed: Sequence[object], wanted: Sequence[str]) -> str:
    """Return the most frequent genre of the first `TOP` films that is not wanted; the first by name of several."""
    films = world.catalog.indices_of_lines(map(str, listed[:TOP]))
    counts = Counter(genre for film in films for genre in world.genres[film] - set(wanted))
    return min(counts, key=lambda genre: (-counts[genre], genre), default="western")


def exclusion(number: int, genre: str) -> list[dict[str, str]]:
    """Return the two messages that follow a request: a list, and the user's exclusion of a genre."""
    listed = {"role": "assistant", "content": LISTS[number % len(LISTS)]}
    return [listed, {"role": "user", "content": EXCLUSIONS[number % len(EXCLUSIONS)].format(genre)}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="champion, models:/NAME@ALIAS or a folder; repeatable")
    parser.add_argument("--users", type=int, default=300)
    options = parser.parse_args()
    for name in options.model or ["champion"]:
        recommender = open_recommender(name)
        world = World(recommender.catalog, SEED, NUM_MONTHS)
        changed, alone, firsts, lasts = [], [], [], []
        for number in range(options.users):
            rng = np.random.default_rng([SEED, number])
            taste = world.draw_taste(rng, NUM_MONTHS - 1)
            other = world.draw_other_taste(rng, taste)
            first, last = (make_request(rng, wish, all_genres=True) for wish in (other, taste))
            changed.append(write_change_of_mind(rng, first, last))
            alone.append(write_conversation(rng, last))
            firsts.append(other.genres)
            lasts.append(taste.genres)
        after_change, after_one = (recommender.recommend(asked, TOP) for asked in (changed, alone))
        excluded = [unasked_genre(world, *pair) for pair in zip(after_one, lasts, strict=True)]
        pairs = enumerate(zip(alone, excluded, strict=True))
        asked = [turns + exclusion(number, genre) for number, (turns, genre) in pairs]
        after_exclusion, unwanted = recommender.recommend(asked, TOP), [[genre] for genre in excluded]
        lines = [f"{name}, {options.users} users: share of the first {TOP} films with"]
        for label, shares in (
            ("a genre of the last wish, after a change of mind", share_with(world, after_change, lasts)),
            ("a genre of the last wish, asked alone", share_with(world, after_one, lasts)),
            ("a genre of the first wish, after a change of mind", share_with(world, after_change, firsts)),
            ("a genre of the first wish, which was not asked for", share_with(world, after_one, firsts)),
            ("a genre that nobody asked for, before its exclusion", share_with(world, after_one, unwanted)),
            ("the same genre, after its exclusion", share_with(world, after_exclusion, unwanted)),
            ("a genre of the wish, after the exclusion", share_with(world, after_exclusion, lasts)),
        ):
            lines.append(f"  {label:52} {shares.mean():.3f} ± {1.96 * shares.std() / len(shares) ** 0.5:.3f}")
        sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
