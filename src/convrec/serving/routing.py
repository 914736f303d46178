"""Which version writes a user's list during an online experiment."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from convrec.data.catalog import Item
from convrec.serving.arms import INTERLEAVED, Experiment, arm_of
from convrec.serving.interleaving import CHALLENGER, CHAMPION, team_draft
from convrec.serving.served import Answered, ServedModel

logger = logging.getLogger(__name__)

Ask = Callable[[ServedModel], Awaitable[Answered]]


@dataclass(frozen=True)
class Routed:
    """A list, and the version that each of its items is from.

    `version` is the version that wrote the list; of an interleaved list, both, as in `3+4`. `experiment`, its id, and
    `arm` are None if the answer does not count for an experiment.
    """

    answered: Answered
    version: str
    versions: Sequence[str]
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
        return _whole(champion, await ask(champion))
    challenger, arm = roles[CHALLENGER], arm_of(experiment, user_id, answer_id)
    if arm == CHAMPION:
        return _whole(champion, await ask(champion), experiment.id, arm)
    asked = [champion, challenger] if arm == INTERLEAVED else [challenger]
    lists = await asyncio.gather(*map(ask, asked), return_exceptions=True)
    if isinstance(lists[-1], BaseException):
        own = lists[0] if arm == INTERLEAVED else await ask(champion)
        if isinstance(own, BaseException):
            raise own
        logger.error("version %s failed on a question that the champion answers: %s", challenger.version, lists[-1])
        on_failure()
        return _whole(champion, own)
    if isinstance(lists[0], BaseException):
        raise lists[0]
    if arm == CHALLENGER:
        return _whole(challenger, lists[0], experiment.id, arm)
    return _merged(experiment, lists[0], lists[-1], answer_id)


def _whole(model: ServedModel, answered: Answered, experiment: str | None = None, arm: str | None = None) -> Routed:
    return Routed(answered, model.version, [model.version] * len(answered.items), experiment, arm)


def _merged(experiment: Experiment, champion: Answered, challenger: Answered, answer_id: str) -> Routed:
    """Return the team draft of two lists, as long as the champion's; scores are those of the side that picked."""
    lists = {CHAMPION: champion, CHALLENGER: challenger}
    versions = {CHAMPION: experiment.champion, CHALLENGER: experiment.challenger}
    ids = {team: [item.id for item in own.items] for team, own in lists.items()}
    picks = team_draft(ids[CHAMPION], ids[CHALLENGER], len(champion.items), answer_id)
    items: list[Item] = []
    scores: list[float] = []
    for item_id, team in picks:
        place = ids[team].index(item_id)
        items.append(lists[team].items[place])
        scores += [own[place]] if (own := lists[team].scores) is not None else []
    answered = Answered(
        champion.messages,
        items,
        scores if len(scores) == len(items) else None,
        champion.num_tokens + challenger.num_tokens,
        champion.filters,
    )
    both = f"{experiment.champion}+{experiment.challenger}"
    return Routed(answered, both, [versions[pick.team] for pick in picks], experiment.id, INTERLEAVED)
