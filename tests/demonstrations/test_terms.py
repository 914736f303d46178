"""Which evidence a training prompt may use: none of later months where training is before validation, by day."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

from convrec.demonstrations.terms import combine
from convrec.similarity.scores import sparse_scores
from tests.rows import make_row


class _Asked:
    """Evidence without terms that keeps what it was asked for."""

    def __init__(self):
        self.earlier = []

    def terms(self, prompts, *, without_own, earlier):
        self.earlier.append((len(prompts), without_own, earlier))
        return {}


def _grounded(prompts, catalog):
    none = sparse.csr_array((len(prompts), len(catalog)), dtype=np.float32)
    reflected = SimpleNamespace(ratings=none)
    return SimpleNamespace(
        prompts=prompts, remapped=SimpleNamespace(scores=sparse_scores(none, "cpu")), reflected=reflected
    )


@pytest.mark.parametrize(
    ("train", "validation", "earlier"),
    [
        (["2022-02-10", "2022-03-31"], ["2022-04-01"], True),
        (["2022-02-10", "2022-04-07"], ["2022-04-14", "2022-04-08"], True),  # within one month
        (["2022-02-10", "2022-04-08"], ["2022-04-08", "2022-04-09"], False),
        (["2022-02-10", "2022-05-01"], ["2022-04-08"], False),
        (["2022-02-10", ""], ["2022-04-08"], False),
        (["2022-02-10", "2022-03-31"], ["2022-04-08", ""], False),
    ],
)
def test_later_months_are_no_evidence_where_training_is_before_validation(catalog, train, validation, earlier):
    dates = {"train": train, "validation": validation * 3}
    rows = {name: [make_row(f"{name}{n}", date=day) for n, day in enumerate(days)] for name, days in dates.items()}
    grounded = {name: _grounded(split, catalog) for name, split in rows.items()}
    asked = _Asked()
    positives = sparse.csr_array((len(train), len(catalog)), dtype=np.float32)
    combine(grounded, rows, positives, np.arange(0), catalog, lambda _: asked, 3, "cpu")
    assert asked.earlier == [(len(train), True, earlier), (3 * len(validation), False, False)]
