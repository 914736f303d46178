"""Sends journals to MLflow: in the background during a run, and those that other processes left."""

import logging
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import mlflow
import requests
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from convrec.project.paths import is_below
from convrec.project.redaction import redact
from convrec.registry.tracking.journal import FOLDER, REFUSED, Journal, left_journals, read_about
from convrec.registry.tracking.store import client_uri, short_message, shown_uri

logger = logging.getLogger(__name__)

Record = dict[str, Any]

_LIMITS = {"metrics": 1000, "params": 100, "tags": 100}  # MLflow's, for one call
_GROUP = 100  # records whose metrics are sent together
_LINGER, _LONGEST_PAUSE = 2.0, 30.0  # seconds between sends: normally, and at most after failures
_FLUSH, _STALL = 30.0, 8.0  # seconds that a run waits at its end: in total, and without progress


class Undelivered(Exception):
    """Some records could not be sent and stay in the journal."""


class _RunRefused(Exception):
    """The server does not have the run, or has deleted it."""


class Delivery:
    """Sends one journal: first all records but artifacts, metrics in batches, then artifacts, which thus delay nothing.

    A record that MLflow refuses is skipped with a warning, and the journal is kept (`Journal.settle`). Sending a record
    twice is safe: MLflow stores the same metric point once, and other records overwrite themselves.
    """

    def __init__(self, journal: Journal, uri: str):
        self.journal = journal
        self.sent: Counter[str] = Counter()  # records by kind
        self.status: str | None = None  # of a run whose process has ended, if known
        self._client = mlflow.MlflowClient(uri)
        self._run_id = journal.about.run_id
        self._kept = journal.path.with_suffix(REFUSED)
        self._ahead = journal.sent  # up to here, all records but artifacts were sent
        self._is_run_refused = False

    def send(self, is_left: bool = False) -> None:
        """Send all that was not sent; raise `Undelivered` with the reason if something has to wait.

        `is_left` says that the run's process has ended: a run without a final status is ended as killed.
        """
        try:
            if not self._is_run_refused:
                self._send()
                if is_left:
                    self._end()
        except _RunRefused as error:
            self._is_run_refused = True
            self.journal.refused += 1
            logger.warning("MLflow refuses the run %s: %s; its records are kept in %s", self._run_id, error, self._kept)
        except Exception as error:  # object stores' libraries have their own exceptions
            raise Undelivered(short_message(error)) from error

    def _send(self) -> None:
        records = self.journal.records(self._ahead)
        while group := list(islice(records, _GROUP)):
            if metrics := [record for record, _ in group if record["kind"] == "metrics"]:
                self._offer(metrics)
            for record, _ in group:
                if record["kind"] not in ("metrics", "artifact"):
                    self._offer([record])
            self._ahead = group[-1][1]
        for record, end in self.journal.records(self.journal.sent):
            if record["kind"] == "artifact" and end <= self._ahead:
                self._offer([record])
                self.journal.mark(end)
        self.journal.mark(self._ahead)

    def _end(self) -> None:
        at = self.journal.about.started
        for record, _ in self.journal.records(0):
            self.status, at = record.get("status", self.status), record.get("at", at)
        if self.status is None and self._run_status() == "RUNNING":
            self._client.set_terminated(self._run_id, "KILLED", at)
            self.status = "KILLED"

    def _offer(self, records: list[Record]) -> None:
        """Send records of one kind; if MLflow refuses them, send them one by one, and skip those that it refuses."""
        try:
            self._put(records)
            self.sent[records[0]["kind"]] += len(records)
        except Exception as error:
            if not self._is_refused(error):
                raise
            if len(records) > 1:
                for record in records:
                    self._offer([record])
                return
            self.journal.refused += 1
            what = redact(str(records[0]))[:200]
            logger.warning(
                "MLflow refuses a record of run %s (%s): %s; it is kept in %s",
                self._run_id,
                what,
                short_message(error),
                self._kept,
            )

    def _is_refused(self, error: Exception) -> bool:
        """Return whether sending the same again is useless. Raises if the server does not answer or lacks the run."""
        if isinstance(error, requests.RequestException):  # from the store of the artifacts
            return getattr(error.response, "status_code", None) in (400, 413, 422)
        if isinstance(error, MlflowException):
            self._run_status()
            return error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_ALREADY_EXISTS")
        return isinstance(error, TypeError | ValueError | KeyError | AttributeError)  # a damaged record

    def _run_status(self) -> str:
        """Return the run's status on the server; raises `_RunRefused` if it has no such run."""
        try:
            info = self._client.get_run(self._run_id).info
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # a proxy's 404 has another code
                raise
            raise _RunRefused("the server has no such run") from error
        if info.lifecycle_stage != "active":
            raise _RunRefused("it was deleted on the server")
        return str(info.status)

    def _put(self, records: list[Record]) -> None:
        run_id, record = self._run_id, records[0]
        match record["kind"]:
            case "metrics" | "params" | "tags" as kind:
                items = [item for each in records for item in _entities(each)]
                for start in range(0, len(items), _LIMITS[kind]):
                    batch: dict[str, Any] = {kind: items[start : start + _LIMITS[kind]]}
                    self._client.log_batch(run_id, **batch)
            case "dataset":
                context = InputTag("mlflow.data.context", record["context"])
                self._client.log_inputs(run_id, [DatasetInput(Dataset(**record["dataset"]), [context])])
            case "artifact":
                self._upload(PurePosixPath(record["path"]), self.journal.copy_of(record["file"]))
            case "status":
                self._client.set_terminated(run_id, record["status"], record["at"])
            case kind:
                raise ValueError(f"there is no kind of record {kind!r}")

    def _upload(self, path: PurePosixPath, copy: Path) -> None:
        if not is_below(str(path)) or not copy.is_file():
            raise ValueError(f"{path} is not a file path, or its copy {copy} is missing")
        with tempfile.TemporaryDirectory() as folder:
            named = Path(folder, path.name)
            os.symlink(copy.resolve(), named)
            self._client.log_artifact(self._run_id, str(named), None if len(path.parts) == 1 else str(path.parent))


def _entities(record: Record) -> list[Any]:
    """Return the points, parameters or tags of a record."""
    if record["kind"] == "metrics":
        return [Metric(name, float(value), record["at"], record["step"]) for name, value in record["metrics"].items()]
    entity = Param if record["kind"] == "params" else RunTag
    return [entity(name, value) for name, value in record[record["kind"]].items()]


class Sender(threading.Thread):
    """Sends a journal every two seconds during its run, with growing pauses while the server is down."""

    def __init__(self, journal: Journal, uri: str):
        super().__init__(name=f"convrec tracking {journal.about.run_id}", daemon=True)
        self._journal, self._delivery = journal, Delivery(journal, uri)
        self._closing = threading.Event()
        self._is_lost = self._is_settled = False

    def run(self) -> None:
        """Send until the run is closed, then once more; remove the journal if everything was sent."""
        pause, is_last = _LINGER, False
        try:
            while not is_last:
                is_last = self._closing.is_set()
                self._send()
                pause = min(2 * pause, _LONGEST_PAUSE) if self._is_lost else _LINGER
                self._closing.wait(pause)
            if not self._is_lost:
                self._journal.settle()
                self._is_settled = True
        finally:
            self._journal.release()

    def _send(self) -> None:
        try:
            self._delivery.send()
        except Undelivered as error:
            if not self._is_lost:
                path = self._journal.path
                logger.warning("records could not be sent to the tracking server, buffered in %s (%s)", path, error)
            self._is_lost = True
            return
        if self._is_lost:
            logger.info("the tracking server is back: the buffered records were sent")
        self._is_lost = False

    def finish(self) -> bool:
        """Send the rest, and return whether everything was sent; stop waiting if the server makes no progress."""
        self._closing.set()
        end, stall, seen = time.monotonic() + _FLUSH, time.monotonic() + _STALL, self._delivery.sent.total()
        while self.is_alive() and time.monotonic() < min(end, stall):
            self.join(0.05)
            if self._delivery.sent.total() != seen:
                seen, stall = self._delivery.sent.total(), time.monotonic() + _STALL
        return self._is_settled


@dataclass(frozen=True)
class Upload:
    """What became of a journal that another process left or is writing."""

    text: str
    is_waiting: bool = False  # it could not be sent, and stays
    is_running: bool = False  # its process is alive, and sends it itself


def upload_left(root: Path) -> Iterator[Upload]:
    """Send every journal of the project whose process has ended, end its run, and yield what became of it."""
    for path in left_journals((root / FOLDER).resolve()):
        try:
            yield _upload(path, root)
        except FileNotFoundError:  # another process has sent it meanwhile
            continue
        except ValueError as error:  # a power failure may leave a file without its content
            kept = path.rename(path.with_suffix(REFUSED))
            logger.warning("%s, so its records cannot be sent; they are kept in %s", error, kept)


def _upload(path: Path, root: Path) -> Upload:
    journal = Journal.adopt(path)
    about = read_about(path) if journal is None else journal.about
    name = f"{about.name or 'a run'} ({about.run_id})"
    if journal is None:
        return Upload(f"{name}: skipped, its process is still running", is_running=True)
    try:
        if about.tracking_uri != shown_uri(root):
            raise Undelivered(f"it belongs to MLFLOW_TRACKING_URI = {about.tracking_uri!r}; set that to send it")
        delivery = Delivery(journal, client_uri(root))
        delivery.send(is_left=True)
        journal.settle()
    except Undelivered as error:
        return Upload(f"{name}: not sent: {error}", is_waiting=True)
    finally:
        journal.release()
    sent = ", ".join(f"{number} {kind}" for kind, number in delivery.sent.items()) or "nothing"
    refused = f"; refused records are kept in {path.with_suffix(REFUSED)}" if journal.refused else ""
    ended = f"; ended as {delivery.status}" if delivery.status else ""
    return Upload(f"{name}: sent {sent}{refused}{ended}")
