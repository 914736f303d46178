"""An MLflow plugin, used only in the server's process: artifacts can be stored only in the server's bucket.

Any user who may create an experiment can set its `artifact_location`, and the server would read and write there with
its own permissions: files of its machine, or other hosts. `entry_points.txt` registers this function for every type of
store except those of the bucket.
"""

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE


def refuse(artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
    """Raise `MlflowException` (status 400) instead of creating an artifact store."""
    raise MlflowException(
        "artifact_location: this server keeps artifacts in its own bucket only; create the experiment without it",
        INVALID_PARAMETER_VALUE,
    )
