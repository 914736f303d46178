"""The weights of guidance, fitted to lists of a model that is a fixed order of the items."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.evidence import EVIDENCE, Evidence
from convrec.data.parsing import format_list
from convrec.evaluation.evaluation import Evaluation
from convrec.evaluation.guidance_fit import fit_guidance
from convrec.generation.lists import EngineOptions, ListSettings
from tests.rows import make_row

FILMS = [("Heat", 1995), ("Dune", 1984), ("Dune", 2021), ("Up", 2009), ("Alien", 1979)]
WORDS = ["a heist", "a desert", "a planet", "balloons", "a monster"]


@dataclass(frozen=True)
class _Ordered(Evaluation):
    """Lists of a model that likes the items in the order of the catalog, each a little less."""

    def of_model(self, model, constrained, settings=None, guide=None):
        lists, log_weights = [], guide and guide(self.prompts)
        for place, _ in enumerate(self.prompts):
            own = log_weights[place] if log_weights else {}
            order = sorted(range(len(self.catalog)), key=lambda item: item * 0.5 - own.get(item, 0.0))
            lists.append(format_list([str(self.catalog.items[item]) for item in order[:2]]))
        return self.of_lists(lists)


def _evaluation(catalog, rows):
    settings = ListSettings("", 2, 30)
    return _Ordered(rows, catalog, settings, EngineOptions("transformers", "cpu", 2, 1, 0.5), [2], 100, 0)


@pytest.mark.parametrize("tells", [True, False])
def test_evidence_gets_weight_where_it_helps_and_none_where_it_does_not(catalog, tells):
    train = [make_row(f"t{i}", [FILMS[i % 5]], WORDS[i % 5 if tells else 0]) for i in range(20)]
    asked = [make_row(f"v{i}", [FILMS[i % 5 if tells else 0]], WORDS[i % 5 if tells else 1]) for i in range(10)]
    evidence = Evidence.fit(train, catalog, TfidfEmbedder, neighbours=20, kept=5)
    fit = fit_guidance(evidence, Path("model"), _evaluation(catalog, asked))
    assert set(fit.weights) == set(EVIDENCE)
    if tells:
        assert fit.weights["neighbours"] > 0 and fit.ndcg == 1.0 > fit.unguided
    else:
        assert not any(fit.weights.values()) and fit.ndcg == fit.unguided == 1.0
