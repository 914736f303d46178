"""What an online experiment has found so far, from the recorded feedback; kept on the challenger when it ends."""

import json
import logging
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import mlflow
import numpy as np
import polars as pl

from convrec.evaluation.sequential import Look, compare_arms, compare_wins
from convrec.feedback.store import FeedbackStore
from convrec.registry.experiment import RESULT_TAG, end_experiment, end_reason
from convrec.registry.moves import read_state
from convrec.registry.promote import tell_card
from convrec.registry.versions import MODEL_NAME, find_version
from convrec.serving.arms import BETTER, INTERLEAVED, UNDECIDED, WORSE, Experiment
from convrec.serving.interleaving import CHALLENGER, CHAMPION

logger = logging.getLogger(__name__)

_FOLDER = "experiment"  # artifact folder of the results in the challenger's run


@dataclass(frozen=True)
class Side:
    """One side: its users and answers, and the items accepted of it; in interleaving, the answers that it won."""

    arm: str
    version: str
    users: int
    answers: int
    accepted: int
    wins: int | None = None

    @property
    def per_answer(self) -> float | None:
        """The accepted items per answer; None without an answer."""
        return self.accepted / self.answers if self.answers else None


@dataclass(frozen=True)
class Result:
    """An experiment's two sides, and its looks with the times of their last answers."""

    experiment: Experiment
    sides: tuple[Side, Side]
    looks: tuple[Look, ...]
    times: tuple[datetime, ...]

    @property
    def no_difference(self) -> float:
        """The value of the estimate if challenger and champion are equally good."""
        return 0.0 if self.experiment.kind == "ab" else 0.5

    @property
    def verdict(self) -> str:
        """What the first look with a p-value of at most alpha says; later ones cannot take it back."""
        for look in self.looks:
            if look.p <= self.experiment.alpha:
                return BETTER if look.mean > self.no_difference else WORSE
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
        estimate = f"{last.mean:+.3f} accepted items per answer"
        bounds = f"{last.low:+.3f} to {last.high:+.3f}"
        if experiment.kind == "interleaving":
            estimate, bounds = f"wins {last.mean:.1%} of decided answers", f"{last.low:.1%} to {last.high:.1%}"
        interval = f"{1 - experiment.alpha:.0%} confidence sequence {bounds}"
        if not np.isfinite(last.low):
            interval = "too few users for a confidence sequence"
        return f"{start}; {estimate}, {interval}, p = {last.p:.3g}, {last.answers} answers of {last.users} users"

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values, with the last look alone; bounds that are infinite are None."""
        last = self.looks[-1]._asdict() if self.looks else {}
        finite = {name: value if np.isfinite(value) else None for name, value in last.items()}
        sides = [{**asdict(side), "per_answer": side.per_answer} for side in self.sides]
        return {"experiment": asdict(self.experiment), "verdict": self.verdict, "sides": sides, "last": finite}


def read_result(store: FeedbackStore, experiment: Experiment) -> Result:
    """Return the result on the answers recorded so far. Raises `Unavailable` if the database is away.

    A/B: accepted items per answer, of both arms. Interleaving: the answers in which more items of one side's picks were
    accepted. Answers without a user's id count as those of a user of their own.
    """
    answers = store.answers(experiment=experiment.id)
    if answers.is_empty():
        sides = Side(CHAMPION, experiment.champion, 0, 0, 0), Side(CHALLENGER, experiment.challenger, 0, 0, 0)
        return Result(experiment, sides, (), ())
    answers = answers.with_columns(
        pl.when(pl.col("user_id").is_null())
        .then(pl.format("answer {}", "answer_id"))
        .otherwise(pl.format("user {}", "user_id"))
        .alias("user")
    )
    until = answers["time"].max() + timedelta(microseconds=1)  # type: ignore[operator]
    accepted = (
        store.outcomes(answers["time"].min(), until)  # type: ignore[arg-type]
        .filter(pl.col("accepted"), pl.col("experiment") == experiment.id)
        .group_by("answer_id")
        .agg(
            pl.len().alias("accepted"),
            (pl.col("version") == experiment.champion).sum().alias(CHAMPION),
            (pl.col("version") == experiment.challenger).sum().alias(CHALLENGER),
        )
    )
    counts = ("accepted", CHAMPION, CHALLENGER)
    rows = answers.join(accepted, on="answer_id", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col(counts).fill_null(0).cast(pl.Int64))
    compare = _compare_arms if experiment.kind == "ab" else _compare_picks
    return compare(experiment, rows)


def _compare_arms(experiment: Experiment, rows: pl.DataFrame) -> Result:
    rows = rows.filter(pl.col("arm").is_in([CHAMPION, CHALLENGER]))
    sides = []
    for arm, version in ((CHAMPION, experiment.champion), (CHALLENGER, experiment.challenger)):
        own = rows.filter(pl.col("arm") == arm)
        sides.append(Side(arm, version, own["user"].n_unique(), len(own), int(own["accepted"].sum())))
    in_challenger = (rows["arm"] == CHALLENGER).to_list()
    users, values = rows["user"].to_list(), rows["accepted"].to_list()
    looks = compare_arms(users, in_challenger, values, experiment.share, experiment.alpha)
    return _result(experiment, sides, looks, rows)


def _compare_picks(experiment: Experiment, rows: pl.DataFrame) -> Result:
    rows = rows.filter(pl.col("arm") == INTERLEAVED)
    num_users = rows["user"].n_unique()
    credits = list(zip(rows[CHAMPION].to_list(), rows[CHALLENGER].to_list(), strict=True))
    wins = (sum(one > other for one, other in credits), sum(other > one for one, other in credits))
    versions = experiment.champion, experiment.challenger
    sides = [
        Side(arm, version, num_users, len(rows), int(rows[arm].sum()), won)
        for arm, version, won in zip((CHAMPION, CHALLENGER), versions, wins, strict=True)
    ]
    return _result(experiment, sides, compare_wins(rows["user"].to_list(), credits, experiment.alpha), rows)


def _result(experiment: Experiment, sides: list[Side], looks: list[Look], rows: pl.DataFrame) -> Result:
    times = rows["time"].to_list()
    return Result(experiment, (sides[0], sides[1]), tuple(looks), tuple(times[look.answers - 1] for look in looks))


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
