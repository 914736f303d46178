from convrec.matching import Truth, relevance


def _rel(catalog, text, truth, seen=(), protocol="reward", ranks=4):
    return relevance(text, [Truth(*t) for t in truth], list(seen), catalog, ranks, protocol)


def test_titles_fold_and_years_may_differ_by_two(catalog):
    assert _rel(catalog, "HEAT  (1997)", [("heat", 1995)]) == [1, 0, 0, 0]
    assert _rel(catalog, "Heat (1998)", [("Heat", 1995)]) == [0, 0, 0, 0]


def test_each_truth_is_credited_once(catalog):
    assert _rel(catalog, "Heat (1995)\nHeat (1995)\nUp (2009)", [("Heat", 1995), ("Up", 2009)]) == [1, 0, 1, 0]


def test_the_nearest_year_is_credited_first(catalog):
    truth = [("Dune", 2020), ("Dune", 2021)]
    assert _rel(catalog, "Dune (2021)\nDune (2021)", truth) == [1, 1, 0, 0]
    assert _rel(catalog, "Dune (2021)", [("Dune", 1984)]) == [0, 0, 0, 0]


def test_a_hit_must_be_in_the_catalog_and_unseen(catalog):
    assert _rel(catalog, "Primer (2004)\nUp (2009)", [("Primer", 2004), ("Up", 2009)], seen=["up"]) == [0, 0, 0, 0]


def test_the_reward_wastes_ranks_that_the_evaluation_closes(catalog):
    text = "Primer (2004)\nUp (2009)\n\nHeat (1995)"
    assert _rel(catalog, text, [("Heat", 1995)], seen=["Up"]) == [0, 0, 0, 1]
    assert _rel(catalog, text, [("Heat", 1995)], seen=["Up"], protocol="evaluation") == [1, 0, 0, 0]


def test_lines_past_the_last_rank_count_nothing(catalog):
    assert _rel(catalog, "Up (2009)\nHeat (1995)", [("Heat", 1995)], ranks=1) == [0]
