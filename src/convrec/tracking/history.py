"""The metric curves of a recorded run as a data frame."""

from pathlib import Path

import mlflow
import pandas as pd
from mlflow.exceptions import MlflowException

from convrec.errors import InputError
from convrec.tracking.store import connect, shown_uri, store_error


def history(run_id: str, root: Path = Path()) -> pd.DataFrame:
    """Return the curves of an MLflow run: one row for each step, one column for each metric with several steps.

    The index is `step`; a metric without a value at a step is NaN there. If a step was logged twice, as after resuming,
    its last value is used. System metrics are left out: their steps are samples. `root` is the project's folder. Raises
    `InputError` if the store has no such run, and `Unavailable` if it does not answer.
    """
    connect(root)
    client = mlflow.MlflowClient()
    try:
        names = sorted(name for name in client.get_run(run_id).data.metrics if not name.startswith("system/"))
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise store_error(error, root) from None
        raise InputError(
            f"run {run_id!r:.60}: no such run in {shown_uri(root)}; `make ui` and runs/STAGE.json show the ids"
        ) from None
    curves = {}
    for name in names:
        points = sorted(client.get_metric_history(run_id, name), key=lambda point: (point.step, point.timestamp))
        values = {point.step: point.value for point in points}
        if len(values) > 1:
            curves[name] = pd.Series(values, dtype=float)
    return pd.DataFrame(curves).sort_index().rename_axis("step")
