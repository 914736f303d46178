import numpy as np
import pytest

from convrec.evaluation import baselines
from convrec.evaluation.baselines import last_month_lists, neighbour_lists, popularity_lists

HEAT, DUNE, UP, ALIEN = ("Heat", 1995), ("Dune", 2021), ("Up", 2009), ("Alien", 1979)


def _row(content, *liked, date="", seen=()):
    return {
        "prompt_id": content,
        "messages": [{"role": "user", "content": content}],
        "groundtruth": [{"title": title, "year": year} for title, year in liked],
        "seen_titles": list(seen),
        "date": date,
    }


TRAIN = [
    _row("bank robbers against detectives", HEAT, date="2022-01-05"),
    _row("robbers and detectives", HEAT, ALIEN, date="2022-01-09"),
    _row("monsters aboard spaceships", ALIEN, date="2022-02-01"),
    _row("balloons and grandfathers", UP, ("Primer", 2004), date="2022-02-02"),
    _row("balloons flying", UP, date="2022-01-02"),
    _row("sand worms", ALIEN, date="2022-01-02"),
]
PROMPTS = [_row("nothing"), _row("flying balloons above detectives", seen=["heat"])]


def _lists(texts):
    return [text.split("\n") for text in texts]


def test_popularity_is_that_of_training_without_the_seen(catalog):
    first, second = _lists(popularity_lists(TRAIN, PROMPTS, catalog, 4))
    assert first == ["Alien (1979)", "Heat (1995)", "Up (2009)", "Dune (1984)"]
    assert second == ["Alien (1979)", "Up (2009)", "Dune (1984)", "Dune (2021)"]


def test_the_last_month_counts_first(catalog):
    first, _ = _lists(last_month_lists(TRAIN, PROMPTS, catalog, 3))
    assert first == ["Alien (1979)", "Up (2009)", "Heat (1995)"]
    later = [*TRAIN, _row("deserts", DUNE, date="2022-03-01")]
    assert _lists(last_month_lists(later, PROMPTS, catalog, 3))[0] == ["Dune (2021)", "Alien (1979)", "Heat (1995)"]
    assert last_month_lists([{**row, "date": ""} for row in TRAIN], PROMPTS, catalog, 3) is None


def test_the_nearest_conversations_vote(catalog, monkeypatch):
    first, second = _lists(neighbour_lists(TRAIN, PROMPTS, catalog, 4, neighbours=3))
    assert first == ["Alien (1979)", "Heat (1995)", "Up (2009)", "Dune (1984)"]  # no words shared: popularity
    assert second[:2] == ["Up (2009)", "Alien (1979)"]
    monkeypatch.setattr(baselines, "_BLOCK", 1)
    assert _lists(neighbour_lists(TRAIN, PROMPTS, catalog, 4, neighbours=3)) == [first, second]


@pytest.mark.parametrize("neighbours", [1, 3, 100])
def test_votes_are_those_of_a_plain_loop(catalog, neighbours):
    """Distinct texts of words drawn at random: the vote by hand, from the same vectors."""
    rng = np.random.default_rng(2)
    words, films = ["crime", "space", "desert", "balloon", "family", "heist"], [HEAT, DUNE, UP, ALIEN]
    texts = dict.fromkeys(" ".join(rng.choice(words, 4)) for _ in range(30))
    train = [_row(text, *[films[place] for place in rng.permutation(4)[:2]]) for text in texts]
    prompts = [_row(" ".join(rng.choice(words, 3))) for _ in range(12)]
    embedder = baselines.TfidfEmbedder(list(texts))
    known = embedder.embed_items(list(texts)).toarray()
    popular = [catalog.find(*film) for row in train for film in [tuple(t.values()) for t in row["groundtruth"]]]
    for row, text in zip(prompts, neighbour_lists(train, prompts, catalog, 5, neighbours), strict=True):
        cosines = known @ embedder.embed_items([row["prompt_id"]]).toarray()[0]
        nearest = np.argsort(-cosines)[:neighbours]
        if len(nearest) < len(train) and np.isclose(*np.sort(cosines)[::-1][neighbours - 1 : neighbours + 1]):
            continue  # a tie for the last place
        votes = np.zeros(len(catalog))
        for place in nearest:
            for truth in train[place]["groundtruth"]:
                votes[catalog.find(truth["title"], truth["year"])] += cosines[place]
        listed = [catalog.index_of_line(line) for line in text.split("\n")]
        keys = [(round(-votes[index], 5), -popular.count(index), index) for index in listed]
        assert keys == sorted(keys) and len(set(listed)) == 5
