"""The weights of guidance, fitted to lists of a model that is a fixed order of the items."""

import math
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from convrec.classical.combine import Weights
from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.evidence import EVIDENCE, Evidence
from convrec.data.parsing import format_list
from convrec.evaluation import guidance_fit
from convrec.evaluation.evaluation import Evaluation
from convrec.evaluation.guidance_fit import fit_guidance
from convrec.generation.lists import EngineOptions, ListSettings
from convrec.generation.trie import NO_GUIDANCE
from tests.generation.vocabularies import by_item
from tests.rows import make_row

FILMS = [("Heat", 1995), ("Dune", 1984), ("Dune", 2021), ("Up", 2009), ("Alien", 1979)]
ALONE = {**dict.fromkeys(EVIDENCE, 0.0), "neighbours": 1.0}
WORDS = ["a heist", "a desert", "a planet", "balloons", "a monster"]


@dataclass(frozen=True)
class _Ordered(Evaluation):
    """Lists of a model that likes the items in the order of the catalog, each a little less."""

    step: float = 0.5

    @contextmanager
    def of_guided(self, model, constrained=True, settings=None):
        def scored(log_weights):
            lists = []
            for weights in log_weights or [NO_GUIDANCE] * len(self.prompts):
                own = by_item(weights)
                order = sorted(range(len(self.catalog)), key=lambda item: item * self.step - own.get(item, 0.0))
                lists.append(format_list([str(self.catalog.items[item]) for item in order[:2]]))
            return self.of_lists(lists)

        yield scored


def _evaluation(catalog, rows, step=0.5):
    settings = ListSettings("", 2, 30)
    return _Ordered(rows, catalog, settings, EngineOptions("transformers", "cpu", 2, 1, 0.5), [2], 100, 0, step)


def _rows(tells):
    train = [make_row(f"t{i}", [FILMS[i % 5]], WORDS[i % 5 if tells else 0]) for i in range(20)]
    asked = [make_row(f"v{i}", [FILMS[i % 5 if tells else 0]], WORDS[i % 5 if tells else 1]) for i in range(10)]
    return train, asked


@pytest.mark.parametrize("tells", [True, False])
def test_evidence_gets_weight_where_it_helps_and_none_where_it_does_not(catalog, tells):
    train, asked = _rows(tells)
    evidence = Evidence.fit(train, catalog, TfidfEmbedder, neighbours=20, kept=5)
    fit = fit_guidance(evidence, Path("model"), _evaluation(catalog, asked))
    assert set(fit.weights) == set(EVIDENCE)
    if tells:
        assert fit.weights["neighbours"] > 0 and fit.ndcg == 1.0 > fit.unguided
    else:
        assert not any(fit.weights.values()) and fit.ndcg == fit.unguided == 1.0


def test_a_model_that_is_sure_of_what_is_wrong_is_silenced(catalog):
    """Its lists are then those of the evidence alone, which needs larger weights than a model of small differences."""
    train, asked = _rows(tells=True)
    evidence = Evidence.fit(train, catalog, TfidfEmbedder, neighbours=20, kept=5)
    modest, sure = (fit_guidance(evidence, Path("model"), _evaluation(catalog, asked, step)) for step in (0.5, 12.0))
    assert sure.ndcg == 1.0 > sure.unguided and sure.weights["neighbours"] >= 8 * modest.weights["neighbours"]


def test_a_scale_that_clearly_loses_is_the_last(catalog, monkeypatch, caplog):
    """Of ten who ask for a planet, three like what the evidence says: it should come second, and does at scale 1."""
    caplog.set_level("INFO")
    monkeypatch.setattr(guidance_fit, "fit_weights", lambda *_: Weights(ALONE, None, None))
    train, _ = _rows(tells=True)
    asked = [make_row(f"v{i}", [FILMS[2 if i < 3 else 0]], "a planet") for i in range(10)]
    evidence = Evidence.fit(train, catalog, TfidfEmbedder, neighbours=20, kept=5)
    fit = fit_guidance(evidence, Path("model"), _evaluation(catalog, asked, step=5.0))
    assert fit.weights == ALONE and fit.ndcg == pytest.approx(0.7 + 0.3 / math.log2(3))
    tried = [float(re.search(r"neighbours ([\d.]+)", text)[1]) for text in caplog.messages if "with popularity" in text]
    scales, popularity, neighbours, others = [0, 0.5, 1, 2], [1], [0, 0.5, 2], [1] * 4
    assert tried == [*scales, *popularity, *neighbours, *others], "not 4, 8 and 16"
