"""The journal of a run: one JSON-lines file that buffers the run's records on disk until MLflow has them.

The first line of `RUN_ID.jsonl` names the run, each further line is one record with its time, and `RUN_ID.files/` has
copies of artifacts. Empty lines are skipped. The run's process holds a lock on the file and sends it in the background.
The next process that starts sends the journals of processes that ended, from their beginning. Sending a record twice is
safe: MLflow stores the same metric point once, and other records overwrite themselves.
"""

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count, groupby, islice
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any

import mlflow
import orjson
import requests
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from convrec.project.journal import JournalFile, lines
from convrec.project.redaction import redact_all, redactor
from convrec.registry.tracking.store import DATABASE, LOCAL_FOLDER, short_message, shown_uri, tracking_uri

logger = logging.getLogger(__name__)

Record = dict[str, Any]

FOLDER = Path("runs", "journal")  # below the project's folder
_REFUSED = ".refused"  # replaces `.jsonl` in the name of a journal with records that MLflow refuses
_REFUSALS = ("INVALID_PARAMETER_VALUE", "RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST")  # not of a proxy
_BATCHES = ("metrics", "params", "tags")  # the kinds of records that are sent together
_GROUP = 100  # records in a batch; MLflow's client splits it by its limits
_LINGER = 2.0  # seconds between sends
_FLUSH = 30.0  # seconds that a run waits for the last send


@dataclass(frozen=True)
class About:
    """The run that a journal belongs to."""

    run_id: str
    name: str
    tracking_uri: str  # without credentials
    started: int  # milliseconds since 1970


def now_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _copies(path: Path) -> Path:
    return path.with_suffix(".files")


class Journal:
    """A new journal below the folder, locked until it is closed."""

    def __init__(self, folder: Path, about: About):
        self._file = JournalFile.start(folder / f"{about.run_id}.jsonl", about)
        self.path, self._is_closed = self._file.path, False
        self._redact, self._numbers = redactor(), count(1)

    def append(self, kind: str, **fields: Any) -> None:
        """Write one redacted record; after an error of the disk, log it and go on. After `close`, do nothing."""
        if self._is_closed:
            return
        record = {"kind": kind, "at": now_ms(), **redact_all(fields, self._redact)}
        try:
            self._file.append(record)
        except OSError as error:
            logger.error("a record (%s) cannot be written to %s (%s); it is lost", kind, self.path, error)

    def append_file(self, source: Path | bytes, path: str) -> None:
        """Copy a file as it is now, and record it as the artifact `path`. After `close`, do nothing."""
        if self._is_closed:
            return
        name = f"{next(self._numbers):06d}"  # not the file's name, because DVC would read a copy of dvc.yaml
        copy = _copies(self.path) / name
        try:
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(source if isinstance(source, bytes) else source.read_bytes())
        except OSError as error:
            logger.error("%s could not be copied to %s (%s); it is not recorded", path, copy, error)
            return
        self.append("artifact", path=path, file=name)

    def close(self, release: bool = True) -> None:
        """End the journal; `release` the lock, so that another process can send it, or hold it to this one's end."""
        self._is_closed = True
        if release:
            self._file.close()


class Delivery(threading.Thread):
    """Sends one journal: its records in their order, then its artifacts.

    A record that MLflow refuses is skipped with a warning, and its journal is kept. As a thread, it sends every two
    seconds during the run. Raises `ValueError` if the first line does not
    name a run, as after a power failure.
    """

    def __init__(self, path: Path, uri: str):
        super().__init__(name=f"convrec tracking {path.stem}", daemon=True)
        self.path, self._client = path, mlflow.MlflowClient(uri)
        self._closing, self._is_lost = threading.Event(), False
        self.refused = 0
        self._position, line = next(lines(path), (0, b""))
        try:
            self.about = About(**orjson.loads(line))
        except (TypeError, ValueError):
            raise ValueError(f"the first line of {path} does not name a run") from None
        self._last: Record = {}
        self._artifacts: list[Record] = []  # still to be sent

    def run(self) -> None:
        """Send until the run is closed, then once more."""
        while not self._closing.wait(_LINGER):
            self._try()
        self._try()

    def _try(self) -> None:
        was_lost, self._is_lost = self._is_lost, False
        try:
            self.send()
            if was_lost:
                logger.info("the tracking server is back: the buffered records were sent")
        except Exception as error:  # object stores' libraries have their own exceptions
            self._is_lost = True
            if not was_lost:
                reason = short_message(error)
                logger.warning("records are buffered in %s: they could not be sent (%s)", self.path, reason)

    def finish(self) -> bool:
        """Send the rest, remove the journal, and return whether everything was sent; wait for a limited time."""
        self._closing.set()
        self.join(_FLUSH)
        is_sent = not self.is_alive() and not self._is_lost
        if is_sent:
            self.settle()
        return is_sent

    def send(self) -> None:
        """Send what was written since the last call; raise the error of the server that stops it."""
        left = (_parse(line) | {"end": end} for end, line in lines(self.path, self._position))
        for kind, records in groupby(left, key=itemgetter("kind")):
            while group := list(islice(records, _GROUP if kind in _BATCHES else 1)):
                if kind == "artifact":
                    self._artifacts += group
                else:
                    self._offer(group)
                self._last = group[-1]
                self._position = self._last["end"]
        while self._artifacts:  # last: their store may be down while the server answers
            self._offer(self._artifacts[:1])
            del self._artifacts[0]

    def is_moved(self, uri: str) -> bool:
        """Return whether the run is in the store of this URI because its project was moved here, or copied."""
        try:
            are_local = all(one.endswith(f"/{LOCAL_FOLDER}/{DATABASE}") for one in (uri, self.about.tracking_uri))
            return are_local and self._client.get_run(self.about.run_id) is not None
        except MlflowException:
            return False

    def end(self) -> None:
        """End a run as killed if its last record is not its status: its process has ended."""
        if "status" not in self._last:
            self._offer([{"kind": "status", "status": "KILLED", "at": self._last.get("at", self.about.started)}])

    def settle(self) -> None:
        """Remove the journal; one with refused records is kept as `RUN_ID.refused`."""
        if self.refused:
            self.path.rename(self.path.with_suffix(_REFUSED))
        else:
            shutil.rmtree(_copies(self.path), ignore_errors=True)
            self.path.unlink()

    def _offer(self, records: list[Record]) -> None:
        """Send records of one kind; if MLflow refuses them, send them one by one, and skip those that it refuses."""
        try:
            self._put(records)
        except Exception as error:
            if not _is_refusal(error):
                raise
            if len(records) > 1:
                for record in records:
                    self._offer([record])
                return
            self.refused += 1
            if self.refused == 1:
                message = "MLflow refuses records of run %s, such as %.200s (%s); they are kept in %s"
                kept = self.path.with_suffix(_REFUSED)
                logger.warning(message, self.about.run_id, records[0], short_message(error), kept)

    def _put(self, records: list[Record]) -> None:
        run_id, record = self.about.run_id, records[0]
        match record["kind"]:
            case "metrics" | "params" | "tags":
                items = [(name, value, each) for each in records for name, value in each[record["kind"]].items()]
                batch: dict[str, Any] = {record["kind"]: [_entity(*item) for item in items]}
                self._client.log_batch(run_id, **batch)
            case "dataset":
                context = InputTag("mlflow.data.context", record["context"])
                self._client.log_inputs(run_id, [DatasetInput(Dataset(**record["dataset"]), [context])])
            case "artifact":
                self._upload(PurePosixPath(record["path"]), _copies(self.path) / record["file"])
            case "status":
                self._client.set_terminated(run_id, record["status"], record["at"])
            case _:
                raise ValueError("the line is damaged")

    def _upload(self, path: PurePosixPath, copy: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            named = Path(folder, path.name)
            named.symlink_to(copy.resolve(strict=True))
            self._client.log_artifact(self.about.run_id, str(named), None if len(path.parts) == 1 else str(path.parent))


def _parse(line: bytes) -> Record:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        record = None
    return record if isinstance(record, dict) and "kind" in record else {"kind": "damaged"}


def _entity(name: str, value: Any, record: Record) -> Metric | Param | RunTag:
    if record["kind"] == "metrics":
        return Metric(name, float(value), record["at"], record["step"])
    return (Param if record["kind"] == "params" else RunTag)(name, value)


def _is_refusal(error: Exception) -> bool:
    """Return whether sending the same again is useless, because of the record or because the run was deleted."""
    if isinstance(error, requests.RequestException):  # from the store of the artifacts
        return getattr(error.response, "status_code", None) in (400, 413, 422)
    if isinstance(error, MlflowException):
        return error.error_code in _REFUSALS
    return isinstance(error, TypeError | ValueError | KeyError | AttributeError | FileNotFoundError)  # damaged


def upload_left(root: Path) -> Iterator[tuple[str, bool]]:
    """Send each journal whose process has ended, end its run; yield what became of it, and whether it still waits."""
    for path in sorted((root / FOLDER).resolve().glob("[!.]*.jsonl")):
        try:
            if (left := JournalFile.open(path)) is not None:
                with closing(left):
                    yield _upload(Delivery(path, tracking_uri(root)), shown_uri(root))
        except OSError as error:  # of another owner, for instance
            yield f"{path}: not sent: it cannot be used ({error}); change its owner, or move it away", True
        except ValueError as error:
            kept = path.rename(path.with_suffix(_REFUSED))
            logger.warning("%s, so its records cannot be sent; they are kept in %s", error, kept)


def _upload(delivery: Delivery, uri: str) -> tuple[str, bool]:
    about = delivery.about
    name = f"{about.name or 'a run'} ({about.run_id})"
    if about.tracking_uri != uri and not delivery.is_moved(uri):
        remedy = f"it belongs to MLFLOW_TRACKING_URI = {about.tracking_uri!r}; set that to send it"
        return f"{name}: not sent: {remedy}", True
    try:
        delivery.send()
        delivery.end()
    except Exception as error:  # object stores' libraries have their own exceptions
        return f"{name}: not sent: {short_message(error)}", True
    delivery.settle()
    refused = f"; {delivery.refused} refused, kept in {delivery.path.with_suffix(_REFUSED)}" if delivery.refused else ""
    return f"{name}: sent{refused}", False
