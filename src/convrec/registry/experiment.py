"""Online experiments of the registered model: started, read from the recorded feedback, and ended.

At most one is running. It is the model's tag `experiment`, so every service that reads the aliases also reads it. Its
result is kept on the challenger.
"""

import json
import logging
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

import mlflow
import numpy as np
import polars as pl
from mlflow.entities.model_registry import ModelVersion

from convrec.evaluation.sequential import Look, compare_arms
from convrec.project.errors import InputError
from convrec.registry.moves import State, claim, not_undone, read_state, utc_now
from convrec.registry.versions import MODEL_NAME, find_model, find_version
from convrec.service.arms import BETTER, CHALLENGER, CHAMPION, UNDECIDED, WORSE, Experiment
from convrec.service.feedback.store import FeedbackStore

logger = logging.getLogger(__name__)

EXPERIMENT_TAG = "experiment"
RESULT_TAG = "experiment.result"  # on the challenger's version
_MAX_REASON = 500  # characters: MLflow's tags hold 5,000


def read_experiment(client: mlflow.MlflowClient) -> Experiment | None:
    """Return the running experiment, else the last one; None if there was none.

    A tag that is not an experiment is logged and counts as none, so that a service can answer with the champion.
    """
    model = find_model(client)
    text = None if model is None else model.tags.get(EXPERIMENT_TAG)
    try:
        return None if text is None else Experiment.from_json(text)
    except InputError as error:
        logger.error("%s", error)
        return None


def running_experiment(client: mlflow.MlflowClient, champion: str | None) -> Experiment | None:
    """Return the experiment that is running against this champion, or None."""
    found = read_experiment(client)
    return found if found is not None and found.is_running and found.champion == champion else None


def start_experiment(client: mlflow.MlflowClient, challenger: str, share: float, by: str) -> Experiment:
    """Start an experiment of a version against the champion, and return it.

    Raises `InputError` if the share is out of range, there is no champion, the version does not exist or is the
    champion, or an experiment is running.
    """
    if not 0 < share < 1:
        raise InputError(f"--share {share:g}: give a number above 0 and below 1, so that the champion also has users")
    with claim(client, by) as check:
        state = read_state(client)
        if state.champion is None:
            raise InputError("there is no champion to compare with; promote a version first (docs/promotion.md)")
        version = str(find_version(client, challenger).version)
        if version == state.champion:
            raise InputError(f"--challenger {version}: this version is the champion; give another version")
        present = read_experiment(client)
        if present is not None and present.is_running and not end_reason(present, state):
            raise InputError(
                f"experiment {present.id} of version {present.challenger} is running since {present.started}; "
                "`convrec experiment stop` ends it"
            )
        name = f"ab-{version}-{uuid.uuid4().hex[:8]}"
        started = Experiment(name, "ab", state.champion, version, share, utc_now(), by, len(state.moves))
        check()
        client.set_registered_model_tag(MODEL_NAME, EXPERIMENT_TAG, started.to_json())
    return started


def end_experiment(client: mlflow.MlflowClient, expected: str, reason: str, by: str) -> Experiment:
    """End the running experiment, whose id is `expected`, and return it; raises `InputError` if it is not running."""
    with claim(client, by) as check:
        present = read_experiment(client)
        if present is None or not present.is_running or present.id != expected:
            raise InputError(f"experiment {expected} has ended; nothing was changed")
        ended = replace(present, ended=utc_now(), reason=reason[:_MAX_REASON])
        check()
        client.set_registered_model_tag(MODEL_NAME, EXPERIMENT_TAG, ended.to_json())
    return ended


def recorded_result(version: ModelVersion, champion: str) -> dict[str, Any] | None:
    """Return the recorded result of a version's last ended experiment; None if it was not against this champion."""
    result = json.loads(version.tags.get(RESULT_TAG, "null"))
    return result if result and result["champion"] == champion else None


def end_reason(experiment: Experiment, state: State) -> str:
    """Return why the champion's moves have ended an experiment; an empty text if they have not."""
    if state.champion != experiment.champion:
        now = "there is no champion" if state.champion is None else f"version {state.champion} became the champion"
        return f"{now} during the experiment"
    if len(state.moves) > experiment.num_moves:
        return f"the champion changed during the experiment, and is version {state.champion} again"
    return ""


@dataclass(frozen=True)
class Side:
    """One arm: its users and answers, and the items accepted of it."""

    arm: str
    version: str
    users: int
    answers: int
    accepted: int

    @property
    def per_answer(self) -> float | None:
        """The accepted items per answer; None without an answer."""
        return self.accepted / self.answers if self.answers else None


@dataclass(frozen=True)
class Result:
    """An experiment's two sides, and the looks at them after each answer."""

    experiment: Experiment
    sides: tuple[Side, Side]
    looks: tuple[Look, ...]

    @property
    def verdict(self) -> str:
        """What the first look with a p-value of at most alpha says; later ones cannot take it back."""
        for look in self.looks:
            if look.p <= self.experiment.alpha:
                return BETTER if look.mean > 0 else WORSE
        return UNDECIDED

    @property
    def headline(self) -> str:
        """The result in one line."""
        experiment = self.experiment
        versions = f"version {experiment.challenger} against champion {experiment.champion}"
        start = f"experiment {experiment.id}, {versions}: {self.verdict}"
        if not self.looks or not np.isfinite(self.looks[-1].mean):
            return f"{start}; one side has no answers yet"
        last = self.looks[-1]
        interval = f"{1 - experiment.alpha:.0%} confidence sequence {last.low:+.3f} to {last.high:+.3f}"
        if not np.isfinite(last.low):
            interval = "too few users for a confidence sequence"
        size = f"{last.answers} answers of {last.users} users"
        return f"{start}; {last.mean:+.3f} accepted items per answer, {interval}, p = {last.p:.3g}, {size}"

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values, with the last look alone; bounds that are infinite are None."""
        last = self.looks[-1]._asdict() if self.looks else {}
        finite = {name: value if np.isfinite(value) else None for name, value in last.items()}
        sides = [{**asdict(side), "per_answer": side.per_answer} for side in self.sides]
        return {"experiment": asdict(self.experiment), "verdict": self.verdict, "sides": sides, "last": finite}

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table of the sides: its columns, and a row for each side."""
        columns = ("side", "version", "users", "answers", "accepted items", "accepted per answer")
        sides = [
            (side.arm, side.version, *(f"{number:,}" for number in (side.users, side.answers, side.accepted)))
            for side in self.sides
        ]
        rates = ["-" if side.per_answer is None else f"{side.per_answer:.3f}" for side in self.sides]
        return [columns, *((*side, rate) for side, rate in zip(sides, rates, strict=True))]


def read_result(store: FeedbackStore, experiment: Experiment) -> Result:
    """Return the result on the answers recorded so far. Raises `Unavailable` if the database is away.

    An answer without a user's id counts as that of a user of its own.
    """
    answers = store.answers(experiment=experiment.id).filter(pl.col("arm").is_in([CHAMPION, CHALLENGER]))
    user = pl.coalesce(pl.format("user {}", "user_id"), pl.format("answer {}", "answer_id"))
    answers = answers.with_columns(user.alias("user"))
    accepted = pl.DataFrame(schema={"answer_id": pl.String, "accepted": pl.Int64})
    if len(answers):
        until = answers["time"].max() + timedelta(microseconds=1)  # type: ignore[operator]
        outcomes = store.outcomes(answers["time"].min(), until)  # type: ignore[arg-type]
        accepted = outcomes.filter("accepted").group_by("answer_id").agg(pl.len().cast(pl.Int64).alias("accepted"))
    answers = answers.join(accepted, on="answer_id", how="left", maintain_order="left")
    answers = answers.with_columns(pl.col("accepted").fill_null(0))
    in_challenger, values = (answers["arm"] == CHALLENGER).to_list(), answers["accepted"].to_list()
    looks = compare_arms(answers["user"].to_list(), in_challenger, values, experiment.share, experiment.alpha)
    sides = _side(CHAMPION, experiment.champion, answers), _side(CHALLENGER, experiment.challenger, answers)
    return Result(experiment, sides, tuple(looks))


def _side(arm: str, version: str, answers: pl.DataFrame) -> Side:
    own = answers.filter(pl.col("arm") == arm)
    return Side(arm, version, own["user"].n_unique(), len(own), int(own["accepted"].sum()))


def finish(client: mlflow.MlflowClient, result: Result, reason: str, by: str) -> Result:
    """End the experiment of a result, record the result on the challenger, and return it.

    The challenger gets a tag and an artifact of its run.
    """
    experiment = end_experiment(client, result.experiment.id, reason, by)
    ended = replace(result, experiment=experiment)
    value = ended.to_json()
    short = {
        "experiment": experiment.id,
        "verdict": ended.verdict,
        "champion": experiment.champion,
        "ended": experiment.ended,
        "reason": experiment.reason,
        **{name: value["last"].get(name) for name in ("answers", "users", "mean", "low", "high", "p")},
    }
    with not_undone(f"the end of experiment {experiment.id}"):
        version = find_version(client, experiment.challenger)
        client.set_model_version_tag(MODEL_NAME, version.version, RESULT_TAG, json.dumps(short))
        if version.run_id:
            client.log_dict(version.run_id, value, f"experiment/{experiment.id}.json")
    return ended


def watch(
    client: mlflow.MlflowClient, store: FeedbackStore, experiment: Experiment, stop_if_worse: bool, by: str
) -> Result:
    """Return the result so far, and end the experiment if the champion has changed since it started.

    With `stop_if_worse`, it also ends once the challenger is significantly worse. Raises `Unavailable` if the feedback
    database is away.
    """
    result = read_result(store, experiment)
    if not experiment.is_running:
        return result
    reason = end_reason(experiment, read_state(client))
    if not reason and stop_if_worse and result.verdict == WORSE:
        reason = f"version {experiment.challenger} is worse than champion {experiment.champion}"
    return finish(client, result, reason, by) if reason else result
