"""The team's servers without containers: PostgreSQL, an S3 store, MLflow, Prefect and its workers, all on 127.0.0.1."""

from stack.native import Stack
from stack.process import StackError

__all__ = ["Stack", "StackError"]
