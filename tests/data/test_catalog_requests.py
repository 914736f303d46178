import numpy as np

from convrec.data import catalog_requests as module
from convrec.data.catalog import Catalog, Item
from convrec.data.catalog_requests import catalog_requests
from convrec.data.sources.synthetic import embedded_catalog
from convrec.data.wish_marks import plain_words
from convrec.data.wish_reader import wish_reader


def test_a_request_is_read_as_wishes_that_its_items_fit(monkeypatch):
    monkeypatch.setattr(module, "_WITH_PLAIN", 0)
    catalog, is_right = embedded_catalog(), []
    for request in catalog_requests(catalog, 300, seed=1):
        wishes = wish_reader(catalog).read([{"role": "user", "content": request.words}])
        fits = [wish.fits for wish in wishes if wish.fits is not None]
        is_right.append(bool(fits) and np.all(fits, axis=0)[request.items].all())
    assert np.mean(is_right) > 0.95


def test_the_items_are_all_that_have_the_values_whatever_plain_words_stand_between():
    items = [Item("A", None, {"genre": "crime"}), Item("B", None, {"genre": "crime, war"}), Item("C", 1984, {})]
    fits = {"crime": {0, 1}, "war": {1}, "1980s": {2}, "80s": {2}}
    found = catalog_requests(Catalog([*items, Item("D", None)]), 60, seed=3)
    for request in found:
        values = [word for word in request.words.split() if word in fits]
        assert set(request.items) == set.intersection(*map(fits.get, values))
        assert plain_words() >= set(request.words.split()) - set(values)
    assert 30 < len(found) < 60  # none is about D
    assert max(len(request.words.split()) for request in found) > 8


def test_a_seed_gives_the_same_requests_and_another_one_others():
    catalog = embedded_catalog()
    once, again, other = (catalog_requests(catalog, 20, seed) for seed in (0, 0, 1))
    assert once == again != other
    assert max(len(request.items) for request in catalog_requests(catalog, 200, seed=0)) == 100
