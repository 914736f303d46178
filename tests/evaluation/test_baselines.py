import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from convrec.classical import sasrec
from convrec.classical.collaborative import Als, Likes, Named
from convrec.classical.crossfit import CrossFitted
from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.evidence import Evidence
from convrec.classical.guidance import Guidance
from convrec.data.catalog import Catalog
from convrec.data.conversations import distinct_prompts, read_rows, write_rows
from convrec.data.schemas import write_catalog
from convrec.evaluation import baselines
from convrec.evaluation.baselines import Axis, Baselines, Options, Scorer, baseline_lists, choose, kept_baselines
from convrec.evaluation.systems import BASELINES
from convrec.project.config.params import load_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from tests.rows import make_row
from tests.small_project import ROOT, make_stages

HEAT, DUNE, UP, ALIEN = ("Heat", 1995), ("Dune", 2021), ("Up", 2009), ("Alien", 1979)


def _row(content, *liked, date="", seen=(), disliked=()):
    return make_row(content, liked, content, date=date, seen_titles=list(seen), disliked_titles=list(disliked))


TRAIN = [
    _row("bank robbers against detectives", HEAT, date="2022-01-05"),
    _row("robbers and detectives", HEAT, ALIEN, date="2022-01-09"),
    _row("monsters aboard spaceships", ALIEN, date="2022-02-01"),
    _row("balloons and grandfathers", UP, ("Primer", 2004), date="2022-02-02"),
    _row("balloons flying", UP, date="2022-01-02"),
    _row("sand worms", ALIEN, date="2022-01-02"),
]
PROMPTS = [_row("nothing"), _row("flying balloons above detectives", seen=["heat"])]


def test_a_chosen_baseline_is_fitted_to_validation_too(catalog):
    later = [_row(f"late {n}", DUNE, date="2022-03-01") for n in range(9)]
    for name in ("popularity", "neighbours", "fusion"):
        found, before = (_answers(name, catalog, [_row("late")], TRAIN, rows) for rows in (later, TRAIN))
        assert found.lists[0].startswith("Dune (2021)") and not before.lists[0].startswith("Dune (2021)"), name


def _guide(train, catalog, size, embedder=TfidfEmbedder):
    evidence, parts = (kind.fit(train, catalog, embedder, neighbours=5, kept=5) for kind in (Evidence, CrossFitted))
    return Guidance.fit(evidence, parts, train, size, {"name": "tfidf"})


def _answers(name, catalog, prompts=PROMPTS, train=TRAIN, validation=None, size=4, embedder=TfidfEmbedder, **more):
    options, guides = Options(size, size, embedder, seed=3, **{"ordered": True, **more}), (None, None)
    if name == "fusion":
        guide = _guide(train, catalog, size, embedder)
        served = Evidence.fit([*train, *(validation or [])], catalog, embedder, neighbours=5, kept=5)
        guides = guide, replace(guide, evidence=served)
    return dict(baseline_lists([name], train, validation or train, prompts, catalog, options, guides))[name]


def _lists(name, catalog, *args, **settings):
    return [text.split("\n") for text in _answers(name, catalog, *args, **settings).lists]


def test_popularity_is_that_of_training_without_the_seen(catalog):
    first, second = _lists("popularity", catalog)
    assert first == ["Alien (1979)", "Heat (1995)", "Up (2009)", "Dune (1984)"]
    assert second == ["Alien (1979)", "Up (2009)", "Dune (1984)", "Dune (2021)"]


@pytest.mark.parametrize("name", ["popularity", "neighbours", "fusion"])
def test_the_wishes_of_a_prompt_are_kept(catalog, name):
    (older,) = _lists(name, catalog, [_row("robbers, before 1990")], size=2)
    assert set(older) == {"Alien (1979)", "Dune (1984)"}


def test_the_last_month_counts_first(catalog):
    first, _ = _lists("last_month", catalog, size=3)
    assert first == ["Alien (1979)", "Up (2009)", "Heat (1995)"]
    later = [*TRAIN, _row("deserts", DUNE, date="2022-03-01")]
    assert _lists("last_month", catalog, train=later, size=3)[0] == ["Dune (2021)", "Alien (1979)", "Heat (1995)"]


def test_where_validation_begins_within_a_month_its_last_30_days_count(catalog):
    """Of February, training has one day, so January counts, too. Otherwise, only the calendar month counts."""
    train = [
        _row("worms", DUNE, ALIEN, date="2022-01-02"),
        _row("sand", DUNE, date="2022-01-02"),
        _row("planets", DUNE, date="2021-12-30"),
        _row("robbers", HEAT, date="2022-01-03"),
        _row("detectives", HEAT, date="2022-01-31"),
        _row("balloons", UP, date="2022-02-01"),
    ]

    def liked(date):
        asked = [_row("new", UP, date=date)]
        options, named = Options(2, 2, TfidfEmbedder, seed=3), Named.of(asked, catalog)
        scores = Baselines(train, asked, asked, catalog, options, named, None).last_month().of(asked)(slice(None))[0]
        return {str(catalog.items[place]): scores[place] for place in np.flatnonzero(scores)}

    assert liked("2022-02-02") == {"Heat (1995)": 2, "Up (2009)": 1}, "3 January is in the 30 days, 2 January is not"
    assert liked("2022-02-01") == liked("2022-03-01") == liked("") == {"Up (2009)": 1}


@pytest.mark.parametrize("name", ["last_month", "item_knn", "ease", "als"])
def test_a_baseline_says_what_it_needs(catalog, name):
    train = [{**row, "date": ""} for row in TRAIN]
    needed = _answers(name, catalog, [_row("nothing"), _row("bad", seen=["Up"], disliked=["Up"])], train)
    assert needed.startswith("a training split with" if name == "last_month" else "prompts that name items")


def test_sasrec_needs_histories_in_order(catalog):
    assert _answers("sasrec", catalog, ordered=False) == "histories in order of time"
    assert _answers("sasrec", catalog, [_row("nothing")]) == "histories in order of time"


@pytest.mark.parametrize(("number", "power"), [(1, 1), (3, 1), (100, 1), (100, 2)])
def test_votes_are_those_of_a_plain_loop(catalog, monkeypatch, number, power):
    """Distinct texts of words drawn at random: the vote by hand, from the same vectors."""
    rng = np.random.default_rng(2)
    words, films = ["crime", "space", "desert", "balloon", "family", "heist"], [HEAT, DUNE, UP, ALIEN]
    texts = dict.fromkeys(" ".join(rng.choice(words, 4)) for _ in range(30))
    train = [_row(text, *[films[place] for place in rng.permutation(4)[:2]]) for text in texts]
    prompts = [_row(" ".join(rng.choice(words, 3))) for _ in range(12)]
    embedder = TfidfEmbedder(list(texts))
    known = embedder.embed_items(list(texts)).toarray()
    popular = [catalog.find(*film) for row in train for film in [tuple(t.values()) for t in row["groundtruth"]]]
    axes = {"neighbours": Axis((number,)), "power": Axis((power,))}
    monkeypatch.setattr(baselines, "_NEIGHBOURS", axes)
    monkeypatch.setattr(baselines, "_WORDS", {"word_ngrams": Axis((2,))})
    for row, lines in zip(prompts, _lists("neighbours", catalog, prompts, train, size=5), strict=True):
        cosines = known @ embedder.embed_items([row["prompt_id"]]).toarray()[0]
        nearest = np.argsort(-cosines)[:number]
        if len(nearest) < len(train) and np.isclose(*np.sort(cosines)[::-1][number - 1 : number + 1]):
            continue  # a tie for the last place
        votes = np.zeros(len(catalog))
        for place in nearest:
            for truth in train[place]["groundtruth"]:
                votes[catalog.find(truth["title"], truth["year"])] += cosines[place] ** power
        listed = [catalog.index_of_line(line) for line in lines]
        keys = [(round(-votes[index], 5), -popular.count(index), index) for index in listed]
        assert keys == sorted(keys) and len(set(listed)) == 5


def test_neighbours_are_those_of_the_given_embedder(catalog, monkeypatch):
    """Dense vectors, as sentence models give them, that know nothing but the first letter."""

    class Letters:
        def embed_conversations(self, texts):
            return np.array([[text.startswith(letter) for letter in "bms"] for text in texts], dtype=np.float32)

    monkeypatch.setattr(baselines, "_NEIGHBOURS", {"neighbours": Axis((1,)), "power": Axis((1,))})
    prompts = [_row("sky"), _row("moon")]
    made = []
    first, second = _lists("neighbours", catalog, prompts, embedder=lambda texts: made.append(texts) or Letters())
    assert first[0] == "Alien (1979)" and second[0] == "Alien (1979)"
    assert made == 2 * [[row["prompt_id"] for row in TRAIN]], "for the choice, and with validation, here the same rows"
    (third,) = _lists("neighbours", catalog, [_row("bird")], embedder=lambda texts: Letters())
    assert third[0] == "Heat (1995)", "of equal cosines the earlier conversation"


TOGETHER = [
    *(_row(f"war {n}", HEAT, seen=["Alien"]) for n in range(6)),
    *(_row(f"joy {n}", UP, seen=["Dune"]) for n in range(5)),
    *(_row(f"any {n}", ALIEN) for n in range(9)),
]


@pytest.mark.parametrize("name", ["item_knn", "ease", "als"])
def test_what_is_liked_together_is_recommended(catalog, name):
    """Heat goes with Alien, Up with both films Dune; where nothing is named, popularity decides."""
    prompts = [_row("a", seen=["Up"]), _row("b", seen=["Heat"]), _row("c")]
    first, second, third = _lists(name, catalog, prompts, TOGETHER)
    assert set(first[:2]) == {"Dune (1984)", "Dune (2021)"} and second[0] == "Alien (1979)"
    assert third[:2] == ["Alien (1979)", "Heat (1995)"]


@pytest.mark.parametrize("name", ["item_knn", "ease"])
def test_what_goes_with_a_disliked_item_falls_as_far_as_dislikes_weigh(catalog, monkeypatch, name):
    prompts = [_row("d", seen=["Alien"], disliked=["Alien"])]
    monkeypatch.setattr(baselines, "_DISLIKES", {"dislike_weight": Axis((0.0,))})
    assert _lists(name, catalog, prompts, TOGETHER)[0][0] == "Heat (1995)", "the most popular"
    monkeypatch.setattr(baselines, "_DISLIKES", {"dislike_weight": Axis((1.0,))})
    assert _lists(name, catalog, prompts, TOGETHER)[0][-1] == "Heat (1995)"


@pytest.mark.parametrize("name", BASELINES)
def test_hyper_parameters_are_the_best_on_validation(catalog, name, monkeypatch):
    monkeypatch.setattr(sasrec, "_MOST_STEPS", 20)
    monkeypatch.setattr(sasrec, "_CHECK", 10)
    rng = np.random.default_rng(5)
    films = [HEAT, DUNE, UP, ALIEN, ("Dune", 1984)]

    def rows(kind, number):
        drawn = [[films[place] for place in rng.permutation(5)[:3]] for _ in range(number)]
        return [
            _row(f"{kind} {n} {ours[0][0]}", *ours[:2], date="2022-01-01", seen=[f"{ours[2][0]} ({ours[2][1]})"])
            for n, ours in enumerate(drawn)
        ]

    train, validation, test = rows("t", 40), rows("v", 25), rows("x", 5)
    found = _answers(name, catalog, test, train, validation, size=3)
    options, asked = Options(3, 3, TfidfEmbedder, 3, ordered=True), distinct_prompts(validation)
    guide = _guide(train, catalog, 3)
    fitted = Baselines(train, validation, asked, catalog, options, Named.of(test, catalog), guide)
    scorer = getattr(fitted, name)()

    def alone(settings):
        axes = {kind: Axis((value,)) for kind, value in settings.items()}
        monkeypatch.setattr(Baselines, name, lambda _: Scorer(axes, scorer.of))
        return _answers(name, catalog, test, train, validation, size=3).validation

    assert found.validation == alone(found.settings)
    for kind, axis in scorer.axes.items():
        chosen = found.settings[kind]
        beyond = [chosen * axis.ratio, chosen // axis.ratio or chosen] if axis.ratio else []
        for value in (*axis.values, *beyond):
            assert alone({**found.settings, kind: value}) <= found.validation + 1e-3


@pytest.mark.parametrize("best", [(1e5, 3, 0.0), (0.02, 700, 2.0), (100.0, 64, 0.5)])
def test_ranges_widen_until_the_choice_is_inside(best):
    axes = {
        "regularization": Axis((100.0, 300.0), 3),
        "factors": Axis((16, 32, 64), 2),
        "weight": Axis((0.0, 0.5), 2),
        "word_ngrams": Axis((1, 2)),
    }
    asked = []

    def measure(settings):
        asked.append(dict(settings))
        *numbers, word_ngrams = settings.values()
        return word_ngrams - float(np.sum((np.log(np.add(numbers, 0.01)) - np.log(np.add(best, 0.01))) ** 2))

    settings, reached = choose(axes, measure)
    assert reached == measure(settings) > max(map(measure, asked[:])) - 1e-3
    assert settings["word_ngrams"] == 2 and isinstance(settings["factors"], int)
    assert len({tuple(one.values()) for one in asked}) < 80
    for name, wanted in zip(axes, best, strict=False):
        tried = {one[name] for one in asked}
        assert max(tried) > settings[name] and (min(tried) < settings[name] or settings[name] == 0)
        ratio = axes[name].ratio
        assert wanted == settings[name] or wanted / ratio < settings[name] < wanted * ratio


def test_ranges_end_where_a_larger_value_gains_next_to_nothing():
    asked = []

    def measure(settings):
        asked.append(settings["factors"])
        return 1e-5 * np.log(settings["factors"])

    settings, _ = choose({"factors": Axis((64,), 2)}, measure)
    assert settings["factors"] == 64 and max(asked) == 128


@pytest.mark.nightly
@pytest.mark.parametrize("profile", ["embedded", "movielens-100k", "redial"])
def test_choices_of_the_shipped_profiles_are_inside(tmp_path, monkeypatch, make_store, cli, profile):
    folder = Path(os.environ.get("CONVREC_TEST_DATA", "no such folder")) / profile.replace("-", "_")
    if profile != "embedded" and not folder.is_dir():
        pytest.skip(f"real data are needed: set CONVREC_TEST_DATA to the folder above `{folder.name}`")
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    make_stages(tmp_path, {})
    monkeypatch.chdir(tmp_path)
    make_store(tmp_path)
    own = ["--set", f"data.path={folder}"] if profile != "embedded" else []
    own += ["--set", "data.redial.own_splits=false"] if profile == "redial" else []  # the folder has a part of train
    assert cli("profile", profile, *own).status == 0
    assert cli("run", "data").status == 0
    params, paths = load_params(), Paths()
    train, validation = read_rows(paths.split("train")), read_rows(paths.split("validation"))

    def checked(axes, measure):
        asked = {}
        chosen, value = choose(axes, lambda own: asked.setdefault(tuple(own.items()), measure(own)))
        for name, axis in axes.items():
            others = {
                own[name]: ndcg
                for own, ndcg in ((dict(key), ndcg) for key, ndcg in asked.items())
                if all(own[other] == chosen[other] for other in axes if other != name)
            }
            assert max(others.values()) <= value + 1e-3
            if axis.ratio:
                assert max(others) > chosen[name] and (min(others) < chosen[name] or chosen[name] in (0, 1))
        return chosen, value

    monkeypatch.setattr(baselines, "choose", checked)
    options = Options.of(**params.baseline_options())
    catalog = Catalog.read(paths.catalog)
    list(baseline_lists(BASELINES, train, validation, validation[:9], catalog, options, (None, None)))


def test_als_solves_for_a_prompt_as_its_paper_says(catalog):
    """x = (YᵀY + λI + Σ (c - 1) y yᵀ)⁻¹ Σ c y over the liked items."""
    likes, alpha, penalty = Likes.of(TOGETHER, catalog).matrix, 4.0, 0.1
    als = Als(likes, factors=3, regularization=penalty, alpha=alpha, seed=1)
    liked = Named.of([_row("a", seen=["Heat", "Up"]), _row("b")], catalog).liked
    scores = als.scores(liked)
    items = als._model.item_factors.astype(float)
    named = items[[catalog.find(*film) for film in (HEAT, UP)]]
    left = items.T @ items + penalty * np.eye(3) + (alpha - 1) * named.T @ named
    expected = items @ np.linalg.solve(left, alpha * named.sum(axis=0))
    np.testing.assert_allclose(scores[0], expected, rtol=1e-3, atol=1e-4)
    assert not scores[1].any()
    np.testing.assert_array_equal(Als(likes, 3, penalty, alpha, 1).scores(liked), scores)


def test_what_was_searched_is_kept_while_data_and_options_stay(tmp_path, monkeypatch, catalog):
    """A promotion searches nothing that the stage `evaluate` has searched."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    paths, options = Paths(), load_params().baseline_options()
    paths.processed.mkdir(parents=True)
    write_catalog(catalog, paths.catalog)
    for split in ("train", "validation", "test"):
        write_rows(pd.DataFrame(TRAIN), paths.split(split))
    with pytest.raises(InputError, match=r"models/evidence: no evidence yet; run `dvc repro evidence` first"):
        kept_baselines(["fusion"], paths, TRAIN, catalog, **options)
    evidence = Evidence.fit(TRAIN, catalog, TfidfEmbedder, neighbours=5, kept=5)
    Guidance(evidence, {}, {"name": "tfidf"}).save(paths.evidence)
    searched, search, stops_after = [], baseline_lists, "last_month"

    def watched(names, *rest):
        for name, answers in search(names, *rest):
            searched.append(name)
            if name == stops_after:
                raise KeyboardInterrupt
            yield name, answers

    def found(*names, prompts=TRAIN, **changed):
        return kept_baselines(names, paths, prompts, catalog, **{**options, **changed})

    monkeypatch.setattr(baselines, "baseline_lists", watched)
    with pytest.raises(KeyboardInterrupt):
        found("popularity", "last_month")
    stops_after = ""
    first = found("popularity", "sasrec")  # the first was kept
    assert isinstance(first["sasrec"], str)  # what the data lack
    assert found("popularity") == {"popularity": first["popularity"]}
    assert {**found("sasrec", "popularity", "last_month"), **first} == first | found("last_month")
    assert searched == ["popularity", "last_month", "sasrec", "last_month"]
    assert len(found("popularity", prompts=TRAIN[:2])["popularity"].lists) == 2
    found("popularity", seed=5)
    write_rows(pd.DataFrame(TRAIN[:3]), paths.split("train"))
    assert found("popularity") != {"popularity": first["popularity"]}
    assert searched[4:] == ["popularity"] * 3
