"""The registered model for `mlflow.pyfunc`: conversations in, ranked lists out. MLflow runs this file on its own."""

import logging
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel, PythonModelContext

logger = logging.getLogger(__name__)

_INPUTS = ("messages", "conversation")
COLUMNS = ["query", "rank", "title", "year"]


class ListModel(PythonModel):
    """Answers conversations with rows of query (index of the conversation, from 0), rank, title and year."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load checkpoint and catalog."""
        from convrec.generation.lists import ListSettings  # noqa: PLC0415  (the package travels with the model)
        from convrec.service.recommender import Recommender  # noqa: PLC0415
        from convrec.service.translation import ModelFiles  # noqa: PLC0415

        paths = {name: Path(path) for name, path in context.artifacts.items()}
        # Loading a version with MLflow runs this file, so the user already trusts the code that comes with it.
        files = ModelFiles(
            paths["model"],
            paths["catalog"],
            ListSettings(**context.model_config),
            trust_remote_code=True,
            guidance=paths.get("guidance"),
        )
        self._recommender = Recommender.load(files)

    def predict(self, context: PythonModelContext, model_input, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return `n` rows for each conversation, best first, without the items that it names or that are in `deny`.

        The input is a text, a list of texts, the messages of one conversation, a list of such lists, or a data frame
        with the column `messages` or `conversation`. An empty `allow` allows all items.

        Raises `MlflowException`: status 400 for input that `Recommender.recommend` rejects; 500 for internal errors.
        Their traceback goes to the log, because MLflow would send it, with its paths, to the client.
        """
        from convrec.project.errors import InputError  # noqa: PLC0415

        asked = params or {}
        try:
            lists = self._recommender.recommend(
                _conversations(model_input),
                **({"n": _plain(asked["n"])} if "n" in asked else {}),
                deny=_plain(asked.get("deny", [])),
                allow=_plain(asked.get("allow")) or None,
            )
        except InputError as error:
            raise _refusal(str(error)) from None
        except MlflowException:
            raise
        except Exception as error:
            logger.exception("the model failed")
            raise MlflowException("the model failed; see the server's log", INTERNAL_ERROR) from error
        rows = [(query, r.rank, r.title, r.year) for query, answer in enumerate(lists) for r in answer]
        return pd.DataFrame(rows, columns=COLUMNS).astype({"year": "Int64"})


def _conversations(value: Any) -> list[Any]:
    """Return the conversations of an input; raises `MlflowException` for an input of unknown form."""
    if isinstance(value, (pd.DataFrame, dict)):
        columns = [name for name in _INPUTS if name in value]
        if len(columns) != 1:
            raise _refusal("inputs: give exactly one of the columns `conversation` and `messages`")
        value = value[columns[0]]
    value = _plain(value)
    if not isinstance(value, str | list):
        raise _refusal(
            f"inputs: {value!r:.60} is not a conversation; give a text, a list of messages, or a list of those"
        )
    is_one = isinstance(value, str) or (value and all(isinstance(message, dict) for message in value))
    return [value] if is_one else list(value)


def _refusal(reason: str) -> MlflowException:
    return MlflowException(reason, INVALID_PARAMETER_VALUE)


def _plain(value: Any) -> Any:
    """Return a value with all arrays converted to lists; the scoring server and Parquet turn lists into arrays."""
    if isinstance(value, (np.ndarray, np.generic, pd.Series)):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


mlflow.models.set_model(ListModel())
