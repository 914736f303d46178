"""The models that a service holds: they follow what their source wants, while requests are answered."""

import gc
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol
from weakref import WeakSet

from convrec.project.errors import InputError, Unavailable
from convrec.service.served import Call, ServedModel

logger = logging.getLogger(__name__)

POLL_SECONDS = 3.0
RETRY_SECONDS = 60.0  # until a version that failed to load is tried again
LOAD_SECONDS = 600.0  # in which a version must be downloaded, loaded and have decoded its first list
_CLOSE_SECONDS = 5.0  # in which a load must end when the service stops


class Source(Protocol):
    """Where the models come from."""

    def wanted(self) -> Mapping[str, str]:
        """Return the version of each role, the one that answers by default first.

        Raises `InputError` or `Unavailable` if there is none, or the source does not answer.
        """

    def load(self, version: str) -> ServedModel:
        """Return a version, ready to answer. Raises any error if it cannot be used."""


class LiveModels:
    """The models by role, kept as the source wants them by a thread.

    A new version is loaded and warmed beside the old one, then takes its role at once. The old one finishes its
    requests and is freed. A version that fails to load, or is not loaded within `load_seconds`, is retried after a
    pause, and the old one keeps the role. If the source does not answer, everything stays as it is.
    """

    def __init__(
        self,
        source: Source,
        poll_seconds: float = POLL_SECONDS,
        on_failure: Callable[[str], None] = lambda version: None,
        load_seconds: float = LOAD_SECONDS,
    ):
        self._source, self._poll_seconds, self._on_failure = source, poll_seconds, on_failure
        self._load_seconds = load_seconds
        self._loading: Call[ServedModel] | None = None
        self.roles: dict[str, ServedModel] = {}  # the one that answers by default first; empty before it is loaded
        self._left: WeakSet[ServedModel] = WeakSet()  # without a role, until their last requests are answered
        self._retry_at: dict[str, float] = {}
        self._error: Exception | None = None  # of the first version that failed to load
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="models", daemon=True)

    def start(self, is_required: bool) -> None:
        """Begin to follow the source; if a model is required, load it first, and raise why it cannot be loaded."""
        if is_required:
            self.update()
            if self._error is not None and not self.roles:
                raise self._error
        self._thread.start()

    def close(self) -> None:
        """Stop following, and end a load."""
        self._stopped.set()
        if (loading := self._loading) is not None:
            loading.end()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_SECONDS)

    @property
    def versions(self) -> dict[str, str]:
        """The version of each role."""
        return {role: model.version for role, model in self.roles.items()}

    @property
    def is_ready(self) -> bool:
        """Whether a model is loaded, and the engines of all models work."""
        return bool(self.roles) and all(model.decoder.is_alive for model in self.roles.values())

    def current(self) -> dict[str, ServedModel]:
        """Return the models by role; who holds them can use them, whatever the source wants meanwhile.

        Raises `Unavailable` if there is none.
        """
        if not self.roles:
            raise Unavailable("no model is loaded yet; try again later")
        return self.roles

    def update(self) -> None:
        """Load and assign what the source wants now. Raises `InputError` or `Unavailable` if that is not known."""
        wanted = self._source.wanted()
        held = {model.version: model for model in self.roles.values()}
        for version in dict.fromkeys(wanted.values()):
            if version not in held and time.monotonic() >= self._retry_at.get(version, 0):
                try:
                    held[version] = self._load(version)
                except Exception as error:
                    self._on_failure(version)
                    self._error, self._retry_at[version] = self._error or error, time.monotonic() + RETRY_SECONDS
                    text = "version %s cannot be served (%s); the models so far stay, next try in %d s"
                    _log(error, text, version, error, RETRY_SECONDS)
        found = {role: held.get(version) or self.roles.get(role) for role, version in wanted.items()}
        roles = {role: model for role, model in found.items() if model is not None}
        for role, model in roles.items():
            if self.roles.get(role) is not model:
                logger.info("%s is %s", role, "loaded" if model.version == role else f"version {model.version}")
        self._left.update(self.roles.values())
        self.roles = roles
        self._left.difference_update(roles.values())

    def _load(self, version: str) -> ServedModel:
        """Return a version; raise what keeps it from being loaded in time."""
        self._loading = call = Call(partial(self._source.load, version))
        try:
            return call.result.result(self._load_seconds)
        except TimeoutError:
            if call.result.done():  # the version's own error
                raise
            raise Unavailable(f"it was not loaded within {self._load_seconds:g} s") from None
        finally:
            call.end()
            self._loading = None

    def _follow(self) -> None:
        problem = ""  # as last logged
        while not self._stopped.is_set():
            try:
                self.update()
                problem = ""
            except SystemExit:
                if self._stopped.is_set():  # `close` has ended a load
                    return
                logger.error("code of a version has called sys.exit; the models stay as they are")
            except Exception as error:
                if str(error) != problem:
                    _log(error, "the models stay as they are: %s", error)
                problem = str(error)
            if self._left:
                gc.collect()  # their modules refer to each other
            self._stopped.wait(self._poll_seconds)


def _log(error: Exception, text: str, *arguments: Any) -> None:
    """Log an error, with its traceback if it is a defect."""
    logger.error(text, *arguments, exc_info=None if isinstance(error, (InputError, Unavailable)) else error)
