"""What an online experiment has found so far, from the recorded feedback; kept on the challenger when it ends."""

import json
import logging
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

import mlflow
import numpy as np
import polars as pl

from convrec.evaluation.sequential import Look, compare_arms
from convrec.registry.experiment import RESULT_TAG, end_experiment, end_reason
from convrec.registry.moves import read_state
from convrec.registry.promote import tell_card
from convrec.registry.versions import MODEL_NAME, find_version
from convrec.service.arms import BETTER, CHALLENGER, CHAMPION, UNDECIDED, WORSE, Experiment
from convrec.service.feedback.store import FeedbackStore

logger = logging.getLogger(__name__)

_FOLDER = "experiment"  # artifact folder of the results in the challenger's run


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
        if not self.looks:
            return f"{start}; no answers yet"
        last = self.looks[-1]
        if not np.isfinite(last.mean):
            return f"{start}; no answers of one side yet"
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
            (
                side.arm,
                side.version,
                f"{side.users:,}",
                f"{side.answers:,}",
                f"{side.accepted:,}",
                "-" if side.per_answer is None else f"{side.per_answer:.3f}",
            )
            for side in self.sides
        ]
        return [columns, *sides]


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
    return Result(experiment, (_side(CHAMPION, experiment.champion, answers),
                               _side(CHALLENGER, experiment.challenger, answers)), tuple(looks))  # fmt: skip


def _side(arm: str, version: str, answers: pl.DataFrame) -> Side:
    own = answers.filter(pl.col("arm") == arm)
    return Side(arm, version, own["user"].n_unique(), len(own), int(own["accepted"].sum()))


def record_result(client: mlflow.MlflowClient, result: Result) -> None:
    """Write the result of an ended experiment to the challenger: a tag, a line of its model card, and an artifact."""
    experiment, value = result.experiment, result.to_json()
    version = find_version(client, experiment.challenger)
    short = {
        "experiment": experiment.id,
        "verdict": result.verdict,
        "champion": experiment.champion,
        "ended": experiment.ended,
        "reason": experiment.reason,
        **{name: value["last"].get(name) for name in ("answers", "users", "mean", "low", "high", "p")},
    }
    client.set_model_version_tag(MODEL_NAME, version.version, RESULT_TAG, json.dumps(short))
    if version.run_id:
        client.log_dict(version.run_id, value, f"{_FOLDER}/{experiment.id}.json")
    tell_card(client, version, f"{experiment.ended} {result.headline} (ended: {experiment.reason})")


def finish(client: mlflow.MlflowClient, result: Result, reason: str, by: str) -> Result:
    """End the experiment of a result, record the result on the challenger, and return it.

    A result that cannot be recorded is logged: the experiment has ended.
    """
    ended = replace(result, experiment=end_experiment(client, result.experiment.id, reason, by))
    try:
        record_result(client, ended)
    except Exception as error:
        number = ended.experiment.challenger
        logger.error("the result could not be recorded on version %s (%s)", number, str(error)[:200])
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
