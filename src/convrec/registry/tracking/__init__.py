# ruff: noqa: F401
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
    user_name,
)
from convrec.registry.tracking.run import (
    PARENT_VARIABLE,
    Run,
    SilentRun,
    end_pipeline_run,
    open_run,
    run_address,
    runs_page,
    shown_address,
    stage_run,
)
from convrec.registry.tracking.store import connect, shown_uri
