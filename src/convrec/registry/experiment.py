"""Online experiments of the registered model: started, read from the recorded feedback, and ended.

At most one is running. It is the model's tag `experiment`, so every service that reads the aliases also reads it. Its
result is kept on the challenger.
"""

import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import mlflow
import numpy as np
import polars as pl
from mlflow.entities.model_registry import ModelVersion

from convrec.evaluation.sequential import FIRST_LOOK, Look, compare_arms, split_evidence
from convrec.project.errors import InputError
from convrec.registry.moves import State, claim, not_undone, read_state, utc_now
from convrec.registry.versions import (
    CATALOG_TAG,
    alias_version,
    find_version,
    model_name,
    registered_model,
    require_shared_items,
    version_catalog,
)
from convrec.service.arms import BETTER, CHALLENGER, CHAMPION, UNDECIDED, WITHHELD, WORSE, Experiment
from convrec.service.feedback.store import FeedbackStore

logger = logging.getLogger(__name__)

EXPERIMENT_TAG = "experiment"
RESULT_TAG = "experiment.result"  # on the challenger's version
OUTCOME_TIME = timedelta(hours=1)
_MAX_REASON = 500  # characters: MLflow's tags hold 5,000
_DOUBT = 1000  # a check of a valid experiment fails with a probability of at most 1 / 1000
_ACTIVITY_DOUBT = 100  # that of the answers per user; its draws of arms could hardly show 1 / 1000 at late analyses


def read_experiment(client: mlflow.MlflowClient) -> Experiment | None:
    """Return the running experiment, else the last one; None if there was none.

    A tag that is not an experiment is logged and counts as none, so that a service can answer with the champion.
    """
    model = registered_model(client)
    text = None if model is None else model.tags.get(EXPERIMENT_TAG)
    try:
        return None if text is None else Experiment.from_json(text)
    except ValueError:
        remedy = "`convrec experiment start` replaces it"
        logger.error("the registered model's tag `experiment` is not an experiment: %.80r; %s", text, remedy)
        return None


def running_experiment(client: mlflow.MlflowClient, champion: str | None) -> Experiment | None:
    """Return the experiment that is running against this champion, or None."""
    found = read_experiment(client)
    return found if found is not None and found.is_running and found.champion == champion else None


def start_experiment(client: mlflow.MlflowClient, challenger: str, share: float, by: str) -> Experiment:
    """Start an experiment of a version against the champion, and return it.

    Raises `InputError` if the share is out of range, there is no champion, the version does not exist or is the
    champion or of another catalog, or an experiment is running.
    """
    if not 0 < share < 1:
        raise InputError(f"--share {share:g}: give a number above 0 and below 1, so that the champion also has users")
    found, champion = find_version(client, challenger), alias_version(CHAMPION)
    if champion is not None and found.tags.get(CATALOG_TAG) != champion.tags.get(CATALOG_TAG):
        require_shared_items(version_catalog(found) | version_catalog(champion))  # long downloads, before the claim
    with claim(client, by) as check:
        state = read_state(client)
        if state.champion is None:
            raise InputError("there is no champion to compare with; promote a version first (docs/promotion.md)")
        version = str(found.version)
        if version == state.champion:
            raise InputError(f"--challenger {version}: this version is the champion; give another version")
        present = read_experiment(client)
        if present is not None and present.is_running and not end_reason(present, state):
            raise InputError(
                f"experiment {present.id} of version {present.challenger} is running since {present.started}; "
                "`convrec experiment stop` ends it"
            )
        name = f"ab-{version}-{uuid.uuid4().hex[:8]}"
        started = Experiment(name, state.champion, version, share, utc_now(), by, len(state.moves))
        check()
        client.set_registered_model_tag(model_name(), EXPERIMENT_TAG, started.to_json())
    return started


def end_experiment(client: mlflow.MlflowClient, expected: str, reason: str, by: str) -> Experiment:
    """End the running experiment, whose id is `expected`, and return it; raises `InputError` if it is not running."""
    with claim(client, by) as check:
        present = read_experiment(client)
        if present is None or not present.is_running or present.id != expected:
            raise InputError(f"experiment {expected} has ended; nothing was changed")
        ended = replace(present, ended=utc_now(), reason=reason[:_MAX_REASON])
        check()
        client.set_registered_model_tag(model_name(), EXPERIMENT_TAG, ended.to_json())
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
    """An experiment's two sides, the analyses of them, and what makes it invalid."""

    experiment: Experiment
    sides: Sequence[Side]
    looks: Sequence[Look]
    problems: Sequence[str] = ()

    @property
    def verdict(self) -> str:
        """What the first analysis with a p-value of at most alpha says; withheld from an invalid experiment."""
        if self.problems:
            return WITHHELD
        for look in self.looks:
            if look.p <= self.experiment.alpha:
                return BETTER if look.mean > 0 else WORSE
        return UNDECIDED

    @property
    def headline(self) -> str:
        """The result in one line."""
        experiment = self.experiment
        versions = f"version {experiment.challenger} against champion {experiment.champion}"
        start = "; ".join([f"experiment {experiment.id}, {versions}: {self.verdict}", *self.problems])
        if not self.looks:
            return f"{start}; not enough data: the first analysis is after {FIRST_LOOK} answers"
        last = self.looks[-1]
        size = f"the first {last.answers:,} answers, of {last.users:,} users"
        if not np.isfinite([last.low, last.high]).all():
            return f"{start}; not enough data: too few users, or equal values, in {size}"
        interval = f"{1 - experiment.alpha:.0%} confidence sequence {last.low:+.3f} to {last.high:+.3f}"
        return f"{start}; {last.mean:+.3f} accepted items per answer, {interval}, p = {last.p:.3g}, {size}"

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values, with the last look alone; bounds that are infinite are None."""
        last = self.looks[-1]._asdict() if self.looks else {}
        finite = {name: value if np.isfinite(value) else None for name, value in last.items()}
        sides = [{**asdict(side), "per_answer": side.per_answer} for side in self.sides]
        about = {"experiment": asdict(self.experiment), "verdict": self.verdict, "problems": list(self.problems)}
        return {**about, "sides": sides, "last": finite}

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table of the sides: its columns, and a row for each side."""
        rows: list[tuple[str, ...]] = [("side", "version", "users", "answers", "accepted items", "accepted per answer")]
        for side in self.sides:
            rate = "-" if side.per_answer is None else f"{side.per_answer:.3f}"
            rows.append((side.arm, side.version, f"{side.users:,}", f"{side.answers:,}", f"{side.accepted:,}", rate))
        return rows


def read_result(store: FeedbackStore, experiment: Experiment) -> Result:
    """Return the result on the answers recorded so far. Raises `Unavailable` if the database is away.

    An answer without a user's id counts as that of a user of its own. All answers have the same time to be accepted, so
    one counts once it is `OUTCOME_TIME` old.
    """
    answers = store.answers(until=datetime.now(UTC) - OUTCOME_TIME, experiment=experiment.id)
    answers = answers.filter(pl.col("arm").is_in([CHAMPION, CHALLENGER]))
    user = pl.coalesce(pl.format("user {}", "user_id"), pl.format("answer {}", "answer_id"))
    answers = answers.with_columns(user.alias("user"))
    counts = [pl.DataFrame(schema={"answer_id": pl.String, "accepted": pl.Int64})]
    if len(answers):
        until = answers["time"].max() + timedelta(microseconds=1)  # type: ignore[operator]
        for since, end in store.periods(answers["time"].min(), until):  # type: ignore[arg-type]
            taken = store.outcomes(since, end, OUTCOME_TIME).filter("accepted").group_by("answer_id")
            counts.append(taken.agg(pl.len().cast(pl.Int64).alias("accepted")))
    answers = answers.join(pl.concat(counts), on="answer_id", how="left", maintain_order="left")
    answers = answers.with_columns(pl.col("accepted").fill_null(0))
    in_challenger, values = (answers["arm"] == CHALLENGER).to_list(), answers["accepted"].to_list()
    looks = compare_arms(answers["user"].to_list(), in_challenger, values, experiment.share, experiment.alpha)
    sides = []
    for arm, version in ((CHAMPION, experiment.champion), (CHALLENGER, experiment.challenger)):
        own = answers.filter(pl.col("arm") == arm)
        sides.append(Side(arm, version, own["user"].n_unique(), len(own), int(own["accepted"].sum())))
    return Result(experiment, sides, looks, list(_problems(answers, experiment.share)))


def _problems(answers: pl.DataFrame, share: float) -> Iterator[str]:
    """Yield what contradicts the assignment of users to arms by chance, with the counts of the moment it first did.

    Each group of users, all, those of each day and those with an answer without items, has the challenger's share if
    both arms are answered at the same times, lose equally many answers, and lose no users. The users of both arms have
    equally many answers if no arm loses answers.
    """
    arms = answers.group_by("user").agg(pl.col("arm").n_unique())
    if number := len(arms.filter(pl.col("arm") > 1)):
        yield f"{number:,} users are in both arms"
    days = answers.with_columns(pl.col("time").dt.date().alias("day")).partition_by("day", maintain_order=True)
    groups = [("all", 1, answers), ("those with an answer without items", 1, answers.filter(pl.col("num_items") == 0))]
    groups += [(f"those on {day['day'][0]}", number * (number + 1), day) for number, day in enumerate(days, start=1)]
    for name, weight, group in groups:  # the weights' reciprocals sum to 1 over the days
        users = group.with_row_index().unique("user", keep="first", maintain_order=True)
        evidence = split_evidence((users["arm"] == CHALLENGER).to_numpy(), share)
        if number := int(np.argmax(evidence > np.log(_DOUBT * weight))):  # without any user there is none
            there, moment = (users["arm"].head(number) == CHALLENGER).sum(), group.head(users["index"][number - 1] + 1)
            text = f"{there:,} of {number:,} in the challenger's arm, expected {share * number:,.0f}"
            yield f"of the users, {name}: {text} (e-value {np.exp(evidence[number]):,.0f}; {_counts(moment)})"
            break
    in_challenger = (answers["arm"] == CHALLENGER).to_list()
    looks = compare_arms(answers["user"].to_list(), in_challenger, None, share, 1 / _ACTIVITY_DOUBT)
    if failed := next((look for look in looks if look.p <= 1 / _ACTIVITY_DOUBT), None):
        yield (
            "answers per user: a user of the challenger's arm has more than one of the champion's in "
            f"{0.5 + failed.mean:.1%} of the pairs, expected 50% (p = {failed.p:g}; "
            f"{_counts(answers.head(failed.answers))}); either one arm loses answers, or the challenger changes how "
            "often people ask: compare convrec_experiment_answers_total with the recorded answers of each arm; if none "
            "are lost, decide by the accepted items per user"
        )


def _counts(answers: pl.DataFrame) -> str:
    """Return the numbers of users and answers of each arm as a text."""
    sides = [(arm, answers.filter(pl.col("arm") == arm)["user"]) for arm in (CHAMPION, CHALLENGER)]
    return ", ".join(f"{arm} {users.n_unique():,} users with {len(users):,} answers" for arm, users in sides)


def finish(client: mlflow.MlflowClient, result: Result, reason: str, by: str) -> Result:
    """End the experiment of a result, record the result on the challenger, and return it.

    The challenger gets a tag and an artifact of its run.
    """
    experiment = end_experiment(client, result.experiment.id, reason, by)
    ended = replace(result, experiment=experiment)
    value = ended.to_json()
    short = {"experiment": experiment.id, "verdict": ended.verdict, "problems": value["problems"]}
    short |= {name: value["experiment"][name] for name in ("champion", "ended", "reason")}
    short |= {name: value["last"].get(name) for name in ("answers", "users", "mean", "low", "high", "p")}
    with not_undone(f"the end of experiment {experiment.id}"):
        version = find_version(client, experiment.challenger)
        client.set_model_version_tag(model_name(), version.version, RESULT_TAG, json.dumps(short))
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
