"""Matrix factorisation of likes."""

import numpy as np
from implicit.cpu.als import AlternatingLeastSquares
from scipy import sparse
from threadpoolctl import threadpool_limits

from convrec.project.machine import usable_cores


class Als:
    """Alternating least squares for implicit feedback (Hu, Koren and Volinsky, ICDM 2008), from the library `implicit`.

    A like has confidence `alpha`, every other item 1. A prompt is treated as a new user: its factors are solved from
    the items that it names as liked.
    """

    def __init__(self, likes: sparse.csr_array, factors: int, regularization: float, alpha: float, seed: int):
        with threadpool_limits(1, "blas"):  # as implicit recommends: its own threads call BLAS
            self._model = AlternatingLeastSquares(
                factors, regularization, alpha, random_state=seed, num_threads=usable_cores()
            )
            self._model.fit(sparse.csr_matrix(likes), show_progress=False)

    def scores(self, liked: sparse.csr_array) -> np.ndarray:
        """Return the dot products of the prompts' and the items' factors. Shape: liked and result (B, C), float32."""
        with threadpool_limits(1, "blas"):
            people = self._model.recalculate_user(np.arange(liked.shape[0]), sparse.csr_matrix(liked))
            return people @ self._model.item_factors.T
