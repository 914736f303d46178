"""Sends journals to the tracking server: in the background during a run, and those that other processes left."""

import logging
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import mlflow
import requests
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunInfo, RunStatus, RunTag
from mlflow.exceptions import MlflowException

from convrec.paths import is_below
from convrec.tracking import journal as journals
from convrec.tracking.journal import Journal, Lane
from convrec.tracking.store import client_uri, short_message, shown_uri

logger = logging.getLogger(__name__)

Records = list[dict[str, Any]]

_MAX_METRICS, _MAX_TEXTS = 1000, 100  # MLflow's limits for one batch
_MAX_RECORDS = 1000  # records of one group
_TRIES = 3  # attempts to send a record to a reachable server that fails
_REFUSALS = ("INVALID_PARAMETER_VALUE", "RESOURCE_ALREADY_EXISTS")
_NOT_REFUSED = (401, 403, 404, 408, 429, 503, 504)  # can succeed later, once the user, run or server is fixed
_BAD_RECORD = (TypeError, ValueError, KeyError, AttributeError)

_LINGER, _LONGEST_PAUSE = 2.0, 30.0  # seconds between sends: normally, and at most after failures
_FLUSH, _STALL = 30.0, 8.0  # seconds that a run waits at its end: in total, and without progress


class Undelivered(Exception):
    """Some records could not be sent and stay in the journal."""


class Delivery:
    """Sends the records of one journal in order, each kind in batches, and artifacts in a separate lane.

    A record that the server rejects is set aside with the reason. Sending a record twice is safe: MLflow stores the
    same metric point once, and other records overwrite themselves.
    """

    def __init__(self, journal: Journal, uri: str):
        self.journal = journal
        self.sent: Counter[str] = Counter()  # by kind, in MLflow's entities
        self.requests = 0
        self._client = mlflow.MlflowClient(uri)
        self._run_id = journal.about.run_id
        self._failures = 0

    def send(self) -> None:
        """Send all unsent records; raise `Undelivered` with the reason on failure. Artifacts do not block metrics."""
        files = (([record], end) for record, end in self._unsent("artifacts"))
        try:
            self._send_lane("records", self._groups(), self._send_records)
            self._send_lane("artifacts", files, self._send_file)
        except Undelivered:
            raise
        except Exception as error:  # object stores' libraries have their own exceptions
            raise Undelivered(short_message(error)) from error

    def end(self, status: str, at: int) -> None:
        """Set the final status of the run; `at` is in milliseconds since 1970."""
        self._client.set_terminated(self._run_id, status, at)

    def is_running(self) -> bool:
        """Return whether the run is still running according to the server."""
        return self._run_info().status == RunStatus.to_string(RunStatus.RUNNING)

    def _unsent(self, lane: Lane) -> Iterator[tuple[dict[str, Any], int]]:
        return self.journal.unsent(lane)

    def _groups(self) -> Iterator[tuple[Records, int]]:
        """Yield groups of successive records with the position after each; a group has at most one metrics batch."""
        group: Records = []
        metrics = end = 0
        for record, position in self._unsent("records"):
            count = len(record.get("metrics", ()))
            if group and (metrics + count > _MAX_METRICS or len(group) == _MAX_RECORDS):
                yield group, end
                group, metrics = [], 0
            group.append(record)
            metrics, end = metrics + count, position
        if group:
            yield group, end

    def _send_lane(
        self,
        lane: Lane,
        groups: Iterable[tuple[Records, int]],
        send: Callable[[Records], None],
    ) -> None:
        for records, end in groups:
            send(records)
            self._failures = 0
            self.journal.mark_sent(lane, end)
            if lane == "artifacts" and records[0]["kind"] == "artifact" and self.journal.file(records[0]).is_file():
                self.journal.file(records[0]).unlink()

    def _send_records(self, records: Records) -> None:
        """Send a group: first parameters, tags and metrics in batches, then datasets and the final status in order."""
        params: Records = []
        tags: dict[str, dict[str, Any]] = {}  # the last value of each name
        metrics: Records = []
        rest: Records = []
        for record in records:
            kind = record["kind"]
            if kind == "metrics":
                shared = {"kind": "metric", "step": record["step"], "at": record["at"]}
                metrics += [{**shared, "key": key, "value": value} for key, value in record["metrics"].items()]
            elif kind == "params":
                params += [{"kind": "param", "key": key, "value": value} for key, value in record["params"].items()]
            elif kind == "tags":
                tags |= {key: {"kind": "tag", "key": key, "value": value} for key, value in record["tags"].items()}
            else:
                rest.append(record)
        for kind, items, size, send in (
            ("params", params, _MAX_TEXTS, self._send_params),
            ("tags", list(tags.values()), _MAX_TEXTS, self._send_tags),
            ("metrics", metrics, _MAX_METRICS, self._send_metrics),
        ):
            for batch in _batches(items, size):
                self._offer("records", kind, batch, send)
        for record in rest:
            self._offer("records", record["kind"], [record], self._send_other)

    def _offer(self, lane: Lane, kind: str, items: Records, send: Callable[[Records], None]) -> None:
        """Send items; if the server rejects them, bisect to find the ones to set aside."""
        try:
            send(items)
            self.sent[kind] += len(items)
            self.requests += 1
        except Exception as error:
            if not self._is_refused(error, lane):
                raise
            if len(items) == 1:
                self.journal.refuse(items[0], short_message(error))
                self.sent["refused"] += 1
                return
            middle = len(items) // 2
            for half in (items[:middle], items[middle:]):
                self._offer(lane, kind, half, send)

    def _is_refused(self, error: Exception, lane: Lane) -> bool:
        """Return whether retrying is useless: the error says so, or a reachable server fails repeatedly."""
        if isinstance(error, requests.RequestException):
            status = getattr(error.response, "status_code", None)
            return status in (400, 413, 422)
        if isinstance(error, MlflowException):
            self._require_run()
            if error.error_code in _REFUSALS:
                return True
            # A server reports failures of its artifact store as its own errors.
            if lane == "artifacts" or error.get_http_status_code() in _NOT_REFUSED:
                return False
            self._failures += 1
            return self._failures > _TRIES
        return isinstance(error, _BAD_RECORD) and not isinstance(error, OSError)

    def _require_run(self) -> None:
        """Raise if the server does not answer or does not have the run, so that no record is set aside."""
        if self._run_info().lifecycle_stage != "active":
            raise Undelivered("the run was deleted; restore it in the tracking server")

    def _run_info(self) -> RunInfo:
        try:
            return self._client.get_run(self._run_id).info
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # a proxy's 404 has another code
                raise
            remedy = f"remove {self.journal.path} to discard its records"
            raise Undelivered(f"the server has no such run; {remedy}") from error

    def _send_metrics(self, items: Records) -> None:
        points = [Metric(item["key"], float(item["value"]), item["at"], item["step"]) for item in items]
        self._client.log_batch(self._run_id, metrics=points)

    def _send_params(self, items: Records) -> None:
        self._client.log_batch(self._run_id, params=[Param(item["key"], item["value"]) for item in items])

    def _send_tags(self, items: Records) -> None:
        self._client.log_batch(self._run_id, tags=[RunTag(item["key"], item["value"]) for item in items])

    def _send_other(self, items: Records) -> None:
        for record in items:
            if record["kind"] == "dataset":
                tag = InputTag("mlflow.data.context", record["context"])
                self._client.log_inputs(self._run_id, [DatasetInput(Dataset(**record["dataset"]), [tag])])
            elif record["kind"] == "status":
                self.end(record["status"], record["at"])
            else:
                raise ValueError(_wrong(record))

    def _send_file(self, records: Records) -> None:
        self._offer("artifacts", "files", records, self._upload)

    def _upload(self, records: Records) -> None:
        for record in records:
            if record["kind"] != "artifact":
                raise ValueError(_wrong(record))
            if not is_below(record["path"]):
                raise ValueError(f"path = {record['path']!r} is not a file path")
            path = PurePosixPath(record["path"])
            copy = self.journal.file(record)
            if not copy.is_file():
                if self.journal.is_position_lost:  # it was sent before, and its copy removed
                    continue
                raise ValueError(f"no copy of {path} in {self.journal.path}")
            with tempfile.TemporaryDirectory() as folder:
                named = Path(folder, path.name)
                os.symlink(copy, named)
                parent = None if len(path.parts) == 1 else str(path.parent)
                self._client.log_artifact(self._run_id, str(named), parent)


def _wrong(record: dict[str, Any]) -> str:
    """Return the reason why a record cannot be sent."""
    if record["kind"] != journals.TORN:
        return f"unknown kind of record: {record['kind']}"
    return f"missing or invalid: {', '.join(record['wrong'])}" if "wrong" in record else "the record was cut short"


def _batches(items: Records, size: int) -> Iterator[Records]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


class Sender(threading.Thread):
    """Sends a journal every two seconds during its run, with growing pauses while the server is down."""

    def __init__(self, journal: Journal, uri: str):
        super().__init__(name=f"convrec tracking {journal.about.run_id}", daemon=True)
        self._journal, self._delivery = journal, Delivery(journal, uri)
        self._closing = threading.Event()
        self._is_lost = self._is_removed = False
        self.cpu_seconds = 0.0

    def run(self) -> None:
        """Send until the run is closed, then once more; remove the journal if everything was sent."""
        pause = _LINGER
        while True:
            last = self._closing.is_set()
            delivered = self._try()
            self.cpu_seconds = time.thread_time()
            if last:
                break
            pause = _LINGER if delivered else min(2 * pause, _LONGEST_PAUSE)
            self._closing.wait(pause)
        try:
            if delivered:
                self._journal.remove()
                self._is_removed = True
        finally:
            self._journal.release()

    def _try(self) -> bool:
        try:
            self._delivery.send()
        except Undelivered as error:
            if not self._is_lost:
                logger.warning(
                    "records could not be sent to the tracking server, buffered in %s (%s)", self._journal.path, error
                )
            self._is_lost = True
            return False
        if self._is_lost:
            logger.info("the tracking server is back: the buffered records were sent")
        self._is_lost = False
        return True

    def finish(self) -> bool:
        """Send the rest, and return whether everything was sent; stop waiting if the server makes no progress."""
        self._closing.set()
        end, stall, seen = time.monotonic() + _FLUSH, time.monotonic() + _STALL, self._delivery.requests
        while self.is_alive() and time.monotonic() < min(end, stall):
            self.join(0.05)
            if self._delivery.requests != seen:
                seen, stall = self._delivery.requests, time.monotonic() + _STALL
        return self._is_removed


@dataclass(frozen=True)
class Replayed:
    """The result of sending a journal that another process left."""

    run_id: str
    name: str
    sent: dict[str, int]
    status: str | None  # the run's final status, if known
    problem: str | None  # why the journal could not be sent
    is_alive: bool = False  # its run is still running and sends it itself

    def __str__(self) -> str:
        counts = ", ".join(f"{number} {kind}" for kind, number in self.sent.items() if number and kind != "refused")
        counts += f"; {self.sent['refused']} refused" if self.sent.get("refused") else ""
        ended = f"; ended as {self.status}" if self.status else ""
        what = f"not sent: {self.problem}" if self.problem else f"sent {counts or 'nothing'}{ended}"
        what = "skipped, its process is still running" if self.is_alive else what
        return f"{self.name or 'a run'} ({self.run_id}): {what}"


def replay(path: Path, root: Path) -> Replayed | None:
    """Send a journal that a process left, and end its run; return None if another process has removed the journal."""
    try:
        about = journals.read_about(path)
        journal = Journal.adopt(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if journal is None and not path.exists():  # another process has sent it
        return None
    if journal is None:
        return Replayed(about.run_id, about.name, {}, None, None, is_alive=True)
    if about.tracking_uri != shown_uri(root):
        journal.release()
        problem = f"it belongs to MLFLOW_TRACKING_URI = {about.tracking_uri!r}; set that to send it"
        return Replayed(about.run_id, about.name, {}, None, problem)
    delivery = Delivery(journal, client_uri(root))
    try:
        delivery.send()
        status, at = journal.last_status()
        if status is None and about.owner and delivery.is_running():
            status = RunStatus.to_string(RunStatus.KILLED)
            delivery.end(status, at)
    except (Undelivered, MlflowException) as error:
        journal.release()
        problem = (
            str(error) if isinstance(error, Undelivered) else short_message(error)
        )  # its own message is not shortened, so paths stay whole
        return Replayed(about.run_id, about.name, dict(delivery.sent), None, problem)
    journal.remove()
    return Replayed(about.run_id, about.name, dict(delivery.sent), status, None)


def replay_left(root: Path) -> Iterator[Replayed]:
    """Send every journal of the project, oldest first, and yield the results."""
    for path in journals.left_journals((root / journals.FOLDER).resolve()):
        replayed = replay(path, root)
        if replayed is not None:
            yield replayed
