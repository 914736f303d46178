"""Live evidence: what users accept guides the lists of a service within about a minute, without retraining."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import numpy as np
import polars as pl

from convrec.classical.guidance import Guidance
from convrec.classical.neighbours import Accepted
from convrec.data.conversations import person_key
from convrec.project.errors import InputError, Unavailable
from convrec.service.feedback import FeedbackStore
from convrec.service.served import ServedModel
from convrec.service.translation import Translator

logger = logging.getLogger(__name__)

KINDS = ("neighbours", "popularity")  # of the evidence that feedback changes
_MOST_ITEMS = 100  # accepted items with which a user counts, the newest
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds between two updates
_REST = 20  # times as long as an update the pause is, so that updates take at most a twentieth of one core


class LiveEvidence:
    """Keeps the evidence of models as the feedback database has it, by a thread.

    Answers that are prepared meanwhile have the evidence of before. A user counts as one person; answers without a
    user count for nothing, because nobody knows how many people gave them. If the database fails, the evidence stays.
    """

    def __init__(self, store: FeedbackStore, on_failure: Callable[[], None], is_required: bool = False):
        """`is_required` refuses models that feedback cannot change; otherwise they are logged."""
        self._store, self._on_failure, self._is_required = store, on_failure, is_required
        self._translators: WeakSet[Translator] = WeakSet()
        self.num_items = 0  # accepted items that count, as last read; the most of any model
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

    def following(self, make_served: Callable[..., ServedModel]) -> Callable[..., ServedModel]:
        """Return `make_served` for models whose evidence is live, from their first list on."""

        def make(version: str, *arguments: Any) -> ServedModel:
            model = make_served(version, *arguments)
            self.follow(version, model.translator)
            return model

        return make

    def follow(self, version: str, translator: Translator) -> None:
        """Keep the evidence of a version live. Raises `InputError` for one that feedback cannot change, if required."""
        guide = translator.guide
        kinds = [kind for kind in KINDS if isinstance(guide, Guidance) and guide.weights.get(kind)]
        if not kinds:
            text = (
                f"--evidence live: feedback cannot change the lists of version {version}, whose guidance has no weight "
                f"on {' or '.join(KINDS)} (docs/guidance.md)"
            )
            if self._is_required:
                raise InputError(f"{text}; leave out the option, or serve another version")
            logger.warning(text)
            return
        logger.info("feedback changes the lists of version %s through %s", version, " and ".join(kinds))
        with self._mutex:
            self._translators.add(translator)
        self.update()

    def update(self) -> None:
        """Bring the evidence of all models to what the database has now; log and count a failure."""
        with self._mutex:
            try:
                found = self._store.accepted()
                numbers = [self._update(translator, found) for translator in list(self._translators)]
                self.num_items, self._problem = max(numbers, default=0), ""
            except Exception as error:  # whatever a driver raises, the evidence stays
                self._on_failure()
                if str(error) != self._problem:
                    is_known = isinstance(error, InputError | Unavailable)
                    logger.error("the evidence stays as it is: %s", error, exc_info=None if is_known else error)
                self._problem = str(error)

    def _update(self, translator: Translator, found: pl.DataFrame) -> int:
        """Give a model the evidence with each user's last accepted items that its catalog has; return their number."""
        items = [translator.catalog.index_of_id(item) for item in found["item_id"]]
        kept = found.with_columns(item=pl.Series(items, dtype=pl.Int64)).drop_nulls("item")
        kept = kept.group_by("user_id", maintain_order=True).tail(_MOST_ITEMS)
        person_of = {user: person_key({"user_id": user}) for user in kept["user_id"].unique()}
        accepted = Accepted(
            kept.select(pl.when("is_stored").then(pl.col("answer_id")))["answer_id"].to_list(),
            np.array([person_of[user] for user in kept["user_id"]], dtype=np.int64),
            kept["item"].to_numpy(),
            self._store.messages,
        )
        guide = translator.guide
        assert isinstance(guide, Guidance)
        translator.guide = guide.with_feedback(accepted)
        return len(kept)

    def _run(self) -> None:
        pause = _PAUSE
        while not self._stopped.wait(pause):
            began = time.monotonic()
            self.update()
            pause = min(max(_PAUSE, _REST * (time.monotonic() - began)), _LONGEST_PAUSE)
