"""The registered model as MLflow loads it: conversations in, ranked lists out. MLflow runs this file by itself."""

import functools
import importlib
import logging
from collections.abc import Iterable
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel, PythonModelContext

logger = logging.getLogger(__name__)

PARAMS = ("n", "deny", "allow")  # those of the signature
_INPUTS = ("messages", "conversation")
COLUMNS = ["query", "rank", "title", "year", "score"]


class ListModel(PythonModel):
    """Answers one conversation or several with rows of `query` (which of them, from 0), rank, title, year, score."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load checkpoint and catalog."""
        _refuse_unknown_params()
        from convrec.generation.lists import ListSettings  # noqa: PLC0415  (the package travels with the model)
        from convrec.serving.recommender import Recommender  # noqa: PLC0415

        settings = ListSettings(**context.model_config)
        # Whoever loads a version by MLflow runs this file, and so trusts what came with it already.
        self._recommender = Recommender.load(
            context.artifacts["model"], context.artifacts["catalog"], settings, trust_remote_code=True
        )

    def predict(self, context: PythonModelContext, model_input, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return `n` rows a conversation, best first: none of the items it names or that `deny` holds.

        The input is a text, a list of texts, the messages of one conversation, a list of such lists, or a frame with
        the column `messages` or `conversation`. An empty `allow` allows all. Raises `MlflowException`: status 400 for
        what `Recommender.recommend` does not take; 500 for a defect, which the log explains, since MLflow would answer
        with the traceback and its paths.
        """
        from convrec.errors import InputError  # noqa: PLC0415

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
            raise MlflowException("the model failed; the server's log tells why", INTERNAL_ERROR) from error
        rows = [(query, r.rank, r.title, r.year, r.score) for query, answer in enumerate(lists) for r in answer]
        return pd.DataFrame(rows, columns=COLUMNS).astype({"year": "Int64"})


def _conversations(value: Any) -> list[Any]:
    """Return the conversations of an input; raises `MlflowException` for one that is of no known form."""
    if isinstance(value, pd.DataFrame):
        value = {name: value[name].tolist() for name in _INPUTS if name in value}
    if isinstance(value, dict):
        columns = [name for name in _INPUTS if name in value]
        if len(columns) != 1:
            raise _refusal("give one of the columns `conversation` and `messages`")
        _check_known(name for name in value if name not in columns)
        value = value[columns[0]]
    value = _plain(value)
    if not isinstance(value, str | list):
        raise _refusal(f"inputs: {value!r:.60} is no conversation; give a text, a list of messages, or a list of those")
    is_one = isinstance(value, str) or (value and all(isinstance(message, dict) for message in value))
    return [value] if is_one else list(value)


def _refusal(reason: str) -> MlflowException:
    return MlflowException(reason, INVALID_PARAMETER_VALUE)


def _check_known(unknown: Iterable[Any]) -> None:
    names = ", ".join(sorted(repr(name) for name in unknown))
    if names:
        raise _refusal(f"params: {names} not known; give {', '.join(PARAMS)}")


def _refuse_unknown_params() -> None:
    """Let MLflow refuse params that this model has none of; it drops them, before the model sees them, with a warning.

    Models of other params in this process are left as they are.
    """
    pyfunc: Any = importlib.import_module("mlflow.pyfunc")
    enforce = pyfunc._enforce_params_schema
    if hasattr(enforce, "__wrapped__"):  # a version was loaded before
        return

    @functools.wraps(enforce)
    def strict(params: Any, schema: Any) -> Any:
        names = [param.name for param in schema.params] if schema else []
        if isinstance(params, dict) and sorted(names) == sorted(PARAMS):
            _check_known(name for name in params if name not in PARAMS)
        return enforce(params, schema)

    pyfunc._enforce_params_schema = strict


def _plain(value: Any) -> Any:
    """Return arrays, which the scoring server and Parquet make of lists and texts, as those, whatever they stand in."""
    if isinstance(value, (np.ndarray, np.generic, pd.Series)):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


mlflow.models.set_model(ListModel())
