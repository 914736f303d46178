"""The online experiment of the registered model: started, read and ended; at most one is running.

It is the model's tag `experiment`, so every service that reads the aliases also reads it.
"""

import json
import logging
import uuid
from dataclasses import replace
from typing import Any

import mlflow
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from convrec.project.errors import InputError
from convrec.registry.moves import State, claim, read_state, utc_now
from convrec.registry.versions import MODEL_NAME, find_version
from convrec.service.arms import Experiment

logger = logging.getLogger(__name__)

EXPERIMENT_TAG = "experiment"
RESULT_TAG = "experiment.result"  # on the challenger's version
_MAX_REASON = 500  # characters: MLflow's tags hold 5,000


def read_experiment(client: mlflow.MlflowClient) -> Experiment | None:
    """Return the running experiment, else the last one; None if there was none.

    Raises `InputError` if the tag contains something else.
    """
    text = _tag(client)
    return None if text is None else Experiment.from_json(text)


def running_experiment(client: mlflow.MlflowClient, champion: str | None) -> Experiment | None:
    """Return the experiment that is running against this champion, or None.

    A tag that is not an experiment is logged and counts as none, so that a service can answer with the champion.
    """
    try:
        found = read_experiment(client)
    except InputError as error:
        logger.error("%s", error)
        return None
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
        _write(client, started)
    return started


def end_experiment(client: mlflow.MlflowClient, expected: str | None, reason: str, by: str) -> Experiment:
    """End the running experiment and return it; `expected` is its id if it must be a certain one.

    Raises `InputError` if none is running, or another one is running.
    """
    with claim(client, by) as check:
        try:
            present = read_experiment(client)
        except InputError:  # a tag that cannot be read would block every later experiment
            check()
            client.delete_registered_model_tag(MODEL_NAME, EXPERIMENT_TAG)
            raise InputError(
                "the tag `experiment` could not be read and was removed; no experiment is running"
            ) from None
        if present is None or not present.is_running:
            raise InputError("no experiment is running; `convrec experiment start` starts one")
        if expected is not None and present.id != expected:
            raise InputError(f"experiment {expected} has ended, and {present.id} is running; nothing was changed")
        ended = replace(present, ended=utc_now(), reason=reason[:_MAX_REASON])
        check()
        _write(client, ended)
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


def _tag(client: mlflow.MlflowClient) -> str | None:
    try:
        return client.get_registered_model(MODEL_NAME).tags.get(EXPERIMENT_TAG)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def _write(client: mlflow.MlflowClient, experiment: Experiment) -> None:
    client.set_registered_model_tag(MODEL_NAME, EXPERIMENT_TAG, experiment.to_json())
