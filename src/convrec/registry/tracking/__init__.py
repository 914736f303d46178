"""Records runs in MLflow."""

from convrec.registry.tracking.describe import (
    COMMIT_TAG,
    PARENT_TAG,
    data_tags,
    file_md5,
    flatten,
    git_state,
    metric_values,
    param_texts,
)
from convrec.registry.tracking.run import (
    PARENT_VARIABLE,
    Run,
    SilentRun,
    end_pipeline_run,
    group_run,
    log_text,
    record_versions,
    run_address,
    shown_address,
    stage_run,
    start_pipeline_run,
)
from convrec.registry.tracking.store import connect, shown_uri, tracking_uri

__all__ = [
    "COMMIT_TAG",
    "PARENT_TAG",
    "PARENT_VARIABLE",
    "Run",
    "SilentRun",
    "connect",
    "data_tags",
    "end_pipeline_run",
    "file_md5",
    "flatten",
    "git_state",
    "metric_values",
    "group_run",
    "log_text",
    "param_texts",
    "record_versions",
    "run_address",
    "shown_address",
    "shown_uri",
    "stage_run",
    "start_pipeline_run",
    "tracking_uri",
]
