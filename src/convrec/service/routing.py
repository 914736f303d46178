"""Which version writes a user's list during an online experiment."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from convrec.service.arms import CHALLENGER, CHAMPION, Experiment, arm_of
from convrec.service.served import Answered, ServedModel

logger = logging.getLogger(__name__)

Ask = Callable[[ServedModel], Awaitable[Answered]]


@dataclass(frozen=True)
class Routed:
    """A list, and the version that wrote it.

    `experiment`, its id, and `arm` are None if the answer does not count for an experiment.
    """

    answered: Answered
    version: str
    experiment: str | None = None
    arm: str | None = None


def is_ready(experiment: Experiment, roles: Mapping[str, ServedModel]) -> bool:
    """Return whether both versions of an experiment are loaded, each in its role."""
    loaded = {role: model.version for role, model in roles.items()}
    return (loaded.get(CHAMPION), loaded.get(CHALLENGER)) == (experiment.champion, experiment.challenger)


async def route(
    experiment: Experiment | None,
    roles: Mapping[str, ServedModel],
    user_id: str | None,
    answer_id: str,
    ask: Ask,
    on_failure: Callable[[], None] = lambda: None,
) -> Routed:
    """Return the list of the user's arm; `ask` returns the list of a model.

    Without an experiment, and while its challenger is not loaded, the first model answers, and the answer is not
    counted. The same holds for a question that the challenger fails on but the champion does not; `on_failure` is then
    called. Raises what `ask` raises for the champion.
    """
    champion = next(iter(roles.values()))
    if experiment is None or not is_ready(experiment, roles):
        return Routed(await ask(champion), champion.version)
    arm = arm_of(experiment, user_id, answer_id)
    model = roles[arm]
    try:
        return Routed(await ask(model), model.version, experiment.id, arm)
    except Exception as error:
        if arm == CHAMPION:
            raise
        answered = await ask(champion)
        logger.error("version %s failed on a question that the champion answers: %s", model.version, error)
    on_failure()
    return Routed(answered, champion.version)
