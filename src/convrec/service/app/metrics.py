"""The metrics of the service, for Prometheus."""

from collections.abc import Callable
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one service; docs/serving.md lists them."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        options: dict[str, Any] = {"namespace": "convrec", "registry": self._registry}
        counter: Callable[..., Counter] = partial(Counter, **options)
        histogram: Callable[..., Histogram] = partial(Histogram, **options)
        self.requests = counter("requests", "Responses by path and status", ["path", "status"])
        self.answers = counter("answers", "Lists by version", ["version"])
        self.empty_answers = counter("empty_answers", "Answers without an item", ["version"])
        text = "Completions that were no list of catalog items"
        self.constraint_failures = counter("constraint_failures", text, ["version"])
        self.events = counter("feedback_events", "Events of users by kind", ["event"])
        self.load_failures = counter("model_load_failures", "Versions that could not be loaded")
        self.evidence_failures = counter("evidence_failures", "Updates of the live evidence that failed")
        self.experiment_answers = counter("experiment_answers", "Answers that count for the experiment", ["arm"])
        text = "Questions that the challenger failed on and the champion answered"
        self.experiment_failures = counter("experiment_failures", text)
        self.seconds = histogram("recommend_seconds", "Time of an answer in seconds", buckets=_SECONDS)
        self.batch = histogram("batch_size", "Lists decoded together", buckets=_ROWS)
        self._models = Gauge("model", "1 for the version of each role", ["role", "version"], **options)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is computed when it is read."""
        Gauge(f"convrec_{name}", text, registry=self._registry).set_function(value)

    def page(self, versions: dict[str, str]) -> bytes:
        """Return the metrics as text; `versions` are those of the roles now."""
        self._models.clear()
        for role, version in versions.items():
            self._models.labels(role, version).set(1)
        return generate_latest(self._registry)
