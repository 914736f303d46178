"""Arms of an experiment between two real models."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from convrec.project.errors import InputError
from convrec.service.arms import Experiment, arm_of
from convrec.service.routing import Routed, is_ready, route
from convrec.service.served import ServedModel
from tests.service.recommending import make_recommender

AB = Experiment("ab-4-0a1b2c3d", "ab", "3", "4", 0.5, "2026-01-01T00:00:00+00:00", "ops")
USERS = [f"user {number}" for number in range(8)]
N = 6


@pytest.fixture(scope="module")
def roles() -> Iterator[dict[str, ServedModel]]:
    """A champion and a challenger that give different lists."""
    models = {
        role: ServedModel.of_recommender(version, make_recommender(seed), 8)
        for seed, (role, version) in enumerate({"champion": "3", "challenger": "4"}.items())
    }
    yield models
    for model in models.values():
        model.close()


def _ask(model: ServedModel):
    return model.ask("a film with heists", N, with_scores=True)


def _route(experiment, roles, user="user 1", answer_id="x", ask=_ask, failed=None) -> Routed:
    on_failure = (lambda: None) if failed is None else (lambda: failed.append(user))
    return asyncio.run(route(experiment, roles, user, answer_id, ask, on_failure))


def _ids(routed: Routed) -> list[str]:
    return [item.id for item in routed.answered.items]


@pytest.fixture(scope="module")
def own(roles) -> dict[str, list[str]]:
    """The items of each version's list."""
    return {model.version: _ids(_route(None, {"champion": model})) for model in roles.values()}


def test_each_user_gets_the_list_of_the_arm(roles, own):
    assert own["3"] != own["4"]
    arms = set()
    for user in USERS:
        routed = _route(AB, roles, user)
        version = {"champion": "3", "challenger": "4"}[str(routed.arm)]
        assert routed.arm == arm_of(AB, user, "x") and routed.experiment == AB.id
        assert (routed.version, _ids(routed)) == (version, own[version])
        arms.add(routed.arm)
    assert arms == {"champion", "challenger"}


@pytest.mark.parametrize("change", [{"champion": "2"}, {"challenger": "5"}])
def test_versions_that_are_not_loaded_count_nothing(roles, own, change):
    """The registry was just changed, or the challenger could not be loaded."""
    experiment, alone = replace(AB, **change), {"champion": roles["champion"]}
    assert not is_ready(experiment, roles) and is_ready(AB, roles)
    for routed in (*(_route(experiment, roles, user) for user in USERS), _route(AB, alone)):
        assert (routed.version, routed.arm, routed.experiment) == ("3", None, None)


def test_a_failing_challenger_costs_no_answer(roles, own):
    async def ask(model):
        if model.version == "4":
            raise RuntimeError("the engine has stopped")
        return await _ask(model)

    failed: list[str] = []
    for user in USERS:
        routed = _route(AB, roles, user, ask=ask, failed=failed)
        assert _ids(routed) == own["3"] and routed.version == "3"
        assert (routed.arm is None) == (user in failed)
    assert failed == [user for user in USERS if arm_of(AB, user, "x") != "champion"]


def test_a_question_that_cannot_be_answered_is_the_champion_s_error(roles):
    failed: list[str] = []
    for user in USERS:
        with pytest.raises(InputError, match="n = 99"):
            _route(AB, roles, user, ask=lambda model: model.ask("a film", 99), failed=failed)
    assert failed == []
