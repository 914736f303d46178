"""What a stage measured: a few numbers to compare runs by, and all of them in a file beside."""

from typing import Any

from convrec.project.paths import Paths
from convrec.project.results import write_json
from convrec.registry.tracking import Run, metric_values


def write_results(
    stage: str, headlines: dict[str, Any], details: dict[str, Any], paths: Paths, record: Run, prefix: str = ""
) -> None:
    """Write `metrics/STAGE.json` with the headlines and `results/STAGE.json` with the details, and record both.

    The headlines become metrics of the run, below `prefix`; the details become an artifact.
    """
    write_json(paths.metrics(stage), headlines)
    write_json(paths.results(stage), details)
    record.log_metrics(metric_values(headlines, prefix))
    record.log_artifact(paths.results(stage))
