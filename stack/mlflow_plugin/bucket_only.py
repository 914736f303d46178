"""A plugin of MLflow for the server's process alone: artifacts are in the server's bucket, and nowhere else.

Whoever may create an experiment chooses its `artifact_location`, and the server would read and write there as its own
user: files of its machine, or what other hosts serve. `entry_points.txt` puts this in the place of every kind of
store but those that lead to the bucket.
"""

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE


def refuse(artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
    """Raise `MlflowException` (status 400), in place of making a store."""
    raise MlflowException(
        "artifact_location: this server keeps artifacts in its own bucket only; create the experiment without it",
        INVALID_PARAMETER_VALUE,
    )
