"""The weight of the guide beside a model, fitted to lists of a model that is a fixed order of the items."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.evidence import Evidence
from convrec.classical.guidance import Guidance
from convrec.data.parsing import format_list
from convrec.evaluation.evaluation import Evaluation
from convrec.evaluation.guidance_fit import fit_guidance
from convrec.generation.engine import EngineOptions
from convrec.generation.lists import ListSettings
from tests.generation.vocabularies import by_item
from tests.rows import make_row

FILMS = [("Heat", 1995), ("Dune", 1984), ("Dune", 2021), ("Up", 2009), ("Alien", 1979)]
WORDS = ["a heist", "a desert", "a planet", "balloons", "a monster"]


@dataclass(frozen=True)
class _Ordered(Evaluation):
    """Lists of a model that likes the items in the order of the catalog, each a little less."""

    step: float = 0.5
    calls: list[int] = field(default_factory=list)

    @contextmanager
    def of_guided(self, model, constrained=True, settings=None):
        def scored(*guidances):
            self.calls.append(len(guidances))
            found = []
            for log_weights in guidances:
                lists = []
                for weights in log_weights:
                    own = by_item(weights)
                    order = sorted(range(len(self.catalog)), key=lambda item: item * self.step - own.get(item, 0.0))
                    lists.append(format_list([str(self.catalog.items[item]) for item in order[:2]]))
                found.append(self.of_lists(lists))
            return found

        yield scored


def _evaluation(catalog, rows, step=0.5):
    settings = ListSettings("", 2, 30)
    return _Ordered(rows, catalog, settings, EngineOptions("transformers", "cpu", 2, 1, 0.5), [2], 0, step)


def _rows(tells):
    train = [make_row(f"t{i}", [FILMS[i % 5]], WORDS[i % 5 if tells else 0]) for i in range(20)]
    asked = [make_row(f"v{i}", [FILMS[i % 5 if tells else 0]], WORDS[i % 5 if tells else 1]) for i in range(10)]
    return train, asked


def _guide(train, catalog):
    evidence = Evidence.fit(train, catalog, TfidfEmbedder, neighbours=20, kept=5)
    return Guidance(evidence, {"neighbours": 1.0}, {"name": "tfidf"})


@pytest.mark.parametrize("tells", [True, False])
def test_the_guide_gets_weight_where_it_helps_and_none_where_it_does_not(catalog, tells):
    train, asked = _rows(tells)
    evaluation = _evaluation(catalog, asked)
    fit = fit_guidance(_guide(train, catalog), Path("model"), evaluation)
    assert len(evaluation.calls) == 1, "what does not depend on the other lists is decoded with them"
    if tells:
        assert fit.factor > 0 and fit.ndcg == 1.0 > fit.unguided
    else:
        assert not fit.factor and fit.ndcg == fit.unguided == 1.0


def test_a_model_that_is_sure_of_what_is_wrong_is_silenced(catalog):
    """Its lists are then those of the evidence alone, which needs larger weights than a model of small differences."""
    train, asked = _rows(tells=True)
    guide = _guide(train, catalog)
    modest, sure = (fit_guidance(guide, Path("model"), _evaluation(catalog, asked, step)) for step in (0.5, 12.0))
    assert sure.ndcg == 1.0 > sure.unguided and sure.factor >= 8 * modest.factor
