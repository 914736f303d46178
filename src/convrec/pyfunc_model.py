"""The registered model as MLflow loads it: conversations in, ranked lists out. MLflow runs this file by itself."""

from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel, PythonModelContext

COLUMNS = ["query", "rank", "title", "year", "score"]


class ListModel(PythonModel):
    """Answers one conversation or several with rows of `query` (which of them, from 0), rank, title, year, score."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load checkpoint and catalog."""
        from convrec.generation.lists import Settings  # noqa: PLC0415  (the package travels with the model)
        from convrec.recommender import Recommender  # noqa: PLC0415

        settings = Settings(**context.model_config)
        # Whoever loads a version by MLflow runs this file, and so trusts what came with it already.
        self._recommender = Recommender.load(
            context.artifacts["model"], context.artifacts["catalog"], settings, trust_remote_code=True
        )

    def predict(self, context: PythonModelContext, model_input, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return `n` rows a conversation, best first: none of the items it names or that `deny` holds.

        The input is a text, a list of texts, the messages of one conversation, a list of such lists, or a frame with
        the column `messages` or `conversation`. An empty `allow` allows all. Raises `MlflowException` (status 400) for
        what `Recommender.recommend` does not take.
        """
        from convrec.errors import InputError  # noqa: PLC0415

        asked = params or {}
        try:
            lists = self._recommender.recommend(
                _conversations(model_input),
                **({"n": int(asked["n"])} if "n" in asked else {}),
                deny=_plain(asked.get("deny", [])),
                allow=_plain(asked.get("allow")) or None,
            )
        except InputError as error:
            raise MlflowException(str(error), INVALID_PARAMETER_VALUE) from None
        rows = [(query, r.rank, r.title, r.year, r.score) for query, answer in enumerate(lists) for r in answer]
        return pd.DataFrame(rows, columns=COLUMNS).astype({"year": "Int64"})


def _conversations(value: Any) -> list[Any]:
    if isinstance(value, pd.DataFrame):
        value = {name: value[name].tolist() for name in ("messages", "conversation") if name in value}
    if isinstance(value, dict):
        columns = [name for name in ("messages", "conversation") if name in value]
        if len(columns) != 1:
            raise MlflowException("give one of the columns `conversation` and `messages`", INVALID_PARAMETER_VALUE)
        value = value[columns[0]]
    value = _plain(value)
    is_one = isinstance(value, str) or (value and all(isinstance(message, dict) for message in value))
    return [value] if is_one else value


def _plain(value: Any) -> Any:
    """Return arrays, which the scoring server and Parquet make of lists and texts, as those, whatever they stand in."""
    if isinstance(value, (np.ndarray, pd.Series)):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


mlflow.models.set_model(ListModel())
