"""Live evidence: what users accept guides the lists of a service within about a minute, without retraining."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import polars as pl

from convrec.classical.guidance import Guidance, Outcomes
from convrec.project.errors import InputError, Unavailable
from convrec.service.feedback import FeedbackStore
from convrec.service.served import ServedModel
from convrec.service.translation import Translator

logger = logging.getLogger(__name__)

_ANSWERS = 30  # of a version, with which a user counts, the newest
_ALL_ANSWERS = 20_000  # of a version, the newest, which are read in about a second
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds between two updates
_REST = 20  # times as long as an update the pause is, so that updates take at most a twentieth of one core


class LiveEvidence:
    """Keeps the evidence of models as the feedback database has it, by a thread.

    A version has the evidence of its own lists: what earlier versions showed is what it may have learned from.
    Answers that are prepared meanwhile have the evidence of before. A user counts as one person, from the first
    accepted item on; answers without a user count for nothing, because nobody knows how many people gave them. If the
    database fails, the evidence stays.
    """

    def __init__(self, store: FeedbackStore, on_failure: Callable[[], None], is_required: bool = False):
        """`is_required` refuses models that feedback cannot change; otherwise they are logged."""
        self._store, self._on_failure, self._is_required = store, on_failure, is_required
        self._versions: WeakKeyDictionary[Translator, str] = WeakKeyDictionary()
        self.num_items = 0  # accepted items, as last read
        self._problem = ""  # as last logged
        self._mutex, self._stopped = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="evidence", daemon=True)

    def start(self) -> None:
        """Begin to follow the database."""
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._stopped.set()
        self._thread.join()
        self._store.close()

    def make_followed(self, make_served: Callable[..., ServedModel], version: str, *arguments: Any) -> ServedModel:
        """Return the model that `make_served` makes; its evidence is live, from its first list on."""
        model = make_served(version, *arguments)
        self.follow(version, model.translator)
        return model

    def follow(self, version: str, translator: Translator) -> None:
        """Keep the evidence of a version live. Raises `InputError` for one that feedback cannot change, if required."""
        if not isinstance(translator.guide, Guidance):
            text = f"--evidence live: no evidence guides the lists of version {version} (docs/guidance.md)"
            if self._is_required:
                raise InputError(f"{text}; leave out the option, or serve another version")
            logger.warning(text)
            return
        logger.info("feedback guides the lists of version %s", version)
        with self._mutex:
            self._versions[translator] = version
        self.update()

    def update(self) -> None:
        """Bring the evidence of all models to what the database has now; log and count a failure."""
        with self._mutex:
            try:
                self.num_items = sum(self._update(*each) for each in list(self._versions.items()))
                self._problem = ""
            except Exception as error:  # whatever a driver raises, the evidence stays
                self._on_failure()
                if str(error) != self._problem:
                    is_known = isinstance(error, InputError | Unavailable)
                    logger.error("the evidence stays as it is: %s", error, exc_info=None if is_known else error)
                self._problem = str(error)

    def _update(self, translator: Translator, version: str) -> int:
        """Give a model the evidence of its lists, and return the number of accepted items that its catalog has."""
        found = self._store.recent(version, _ANSWERS, _ALL_ANSWERS)
        items = pl.Series(map(translator.catalog.index_of_id, found["item_id"]), dtype=pl.Int64)
        known = found.with_columns(items.alias("item"), pl.col("user_id").rank("dense")).drop_nulls("item")
        kept = known.filter(pl.col("is_liked").any().over("user_id"))
        columns = (kept["user_id"], kept["item"], kept["rank"] - 1, kept["is_liked"])
        guide = translator.guide
        assert isinstance(guide, Guidance)
        translator.guide = guide.with_feedback(Outcomes(*(column.to_numpy() for column in columns)))
        return int(kept["is_liked"].sum())

    def _run(self) -> None:
        pause = _PAUSE
        while not self._stopped.wait(pause):
            began = time.monotonic()
            self.update()
            pause = min(max(_PAUSE, _REST * (time.monotonic() - began)), _LONGEST_PAUSE)
