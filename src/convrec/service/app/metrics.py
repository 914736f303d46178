"""The metrics of the service, for Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one service; docs/serving.md lists them."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = self._counter("requests", "Responses by path and status", "path", "status")
        self.answers = self._counter("answers", "Lists by version", "version")
        self.empty_answers = self._counter("empty_answers", "Answers without an item", "version")
        self.constraint_failures = self._counter(
            "constraint_failures", "Completions that were no list of catalog items", "version"
        )
        self.events = self._counter("feedback_events", "Events of users by kind", "event")
        self.load_failures = self._counter("model_load_failures", "Versions that could not be loaded")
        self.experiment_answers = self._counter("experiment_answers", "Answers that count for the experiment", "arm")
        self.experiment_failures = self._counter(
            "experiment_failures", "Questions that the challenger failed on and the champion answered"
        )
        self.seconds = self._histogram("recommend_seconds", "Time of an answer in seconds", _SECONDS)
        self.batch = self._histogram("batch_size", "Lists decoded together", _ROWS)
        self._models = Gauge(
            "convrec_model", "1 for the version of each role", ["role", "version"], registry=self._registry
        )

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is computed when it is read."""
        Gauge(f"convrec_{name}", text, registry=self._registry).set_function(value)

    def page(self, versions: dict[str, str]) -> bytes:
        """Return the metrics as text; `versions` are those of the roles now."""
        self._models.clear()
        for role, version in versions.items():
            self._models.labels(role, version).set(1)
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"convrec_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"convrec_{name}", text, buckets=buckets, registry=self._registry)
