"""The champion's moves and their history, against a real MLflow store."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import mlflow
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from convrec.project.errors import InputError
from convrec.registry import moves as registry_moves
from convrec.registry.moves import (
    ChampionChanged,
    Move,
    claim,
    claim_name,
    earlier_champions,
    promote_version,
    read_state,
    roll_back,
)
from convrec.registry.versions import model_name, read_aliases
from tests.registry.registered import moves_of, promote_in_turn


def _is_claimed(client) -> bool:
    return any(model.name == claim_name() for model in client.search_registered_models())


def test_aliases_set_by_hand_and_deleted_versions(client):
    client.set_registered_model_alias(model_name(), "champion", "1")
    promote_in_turn(client, "2", "3")
    assert [move["kind"] for move in moves_of(client)] == ["unlogged", "promote", "promote"]
    client.delete_model_version(model_name(), "2")
    assert roll_back(client, "lead", "").to_version == "1"
    client.set_registered_model_alias(model_name(), "champion", "4")
    assert roll_back(client, "lead", "").to_version == "1"
    assert [move["kind"] for move in moves_of(client)][3:] == ["rollback", "unlogged", "rollback"]
    told = client.get_registered_model(model_name()).tags["move.000004"]
    assert re.match(r"Version 1 became the champion on \S+ \S+ UTC in place of version 3, rolled back by lead\.", told)


CALLS = ("create_registered_model", "set_registered_model_alias", "set_registered_model_tag", "delete_registered_model")


def _stop(client, monkeypatch, error: BaseException, number: int, is_dead: bool) -> None:
    """Let the write of that number fail, and if the process is dead by then, every later one."""
    seen = []

    def broken(real):
        def call(*arguments, **options):
            seen.append(real)
            if len(seen) == number or (is_dead and len(seen) > number):
                raise error
            return real(*arguments, **options)

        return call

    for name in CALLS:
        monkeypatch.setattr(client, name, broken(getattr(client, name)))


def _move_on(client, kind: str) -> str:
    """Promote version 3 in place of 2, or roll back from 2; return the version that should be the champion."""
    if kind == "promote":
        return promote_version(client, read_state(client), "3", "ops", "better").to_version
    return roll_back(client, "lead", "").to_version


class Killed(BaseException):
    """The process is no more."""


@pytest.mark.parametrize(
    ("kind", "error"), [("promote", Killed()), ("rollback", ConnectionError("the server is gone"))]
)
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_failure_or_a_kill_at_any_write_leaves_one_champion_and_is_repaired(client, monkeypatch, kind, error, number):
    promote_in_turn(client, "4", "1", "2")
    monkeypatch.setattr(registry_moves, "PATIENCE", 0)
    with monkeypatch.context() as patch:
        _stop(client, patch, error, number, is_dead=isinstance(error, Killed))
        try:
            _move_on(client, kind)
            failed = False
        except type(error):
            failed = True
    old, new = "2", "3" if kind == "promote" else "1"
    moved = read_aliases(client)["champion"] == new
    assert moved == (number == 4) and failed == (number < 4 or isinstance(error, Killed))
    assert _is_claimed(client) == (number == 4 or (isinstance(error, Killed) and number > 1)), "a killed one leaves it"
    if not moved:
        assert read_aliases(client)["champion"] == old and _move_on(client, kind) == new
    before = {"promote": "2", "rollback": "4"}[kind]
    assert read_aliases(client) == {"champion": new}
    moves = read_state(client).moves
    assert all(one.to_version == other.from_version for one, other in pairwise(moves)), "the history has no gap"
    assert moves[-1].kind == kind and read_state(client).num_written == len(moves)
    assert roll_back(client, "lead", "").to_version == before
    assert not _is_claimed(client)


def test_a_move_whose_answer_was_lost_is_a_move(client, monkeypatch):
    promote_in_turn(client, "1")
    real = client.set_registered_model_alias

    def moved_but_unheard(name, alias, version):
        real(name, alias, version)
        if alias == "champion":
            raise ConnectionError("no answer")

    monkeypatch.setattr(client, "set_registered_model_alias", moved_but_unheard)
    promote_in_turn(client, "2")
    assert read_aliases(client) == {"champion": "2"} and len(moves_of(client)) == 2


def test_a_promotion_that_was_overtaken_is_refused(client):
    promote_in_turn(client, "1")
    compared = read_state(client)
    promote_in_turn(client, "2")
    roll_back(client, "lead", "")
    with pytest.raises(ChampionChanged, match="the champion changed and is version 1 again while version 3 was"):
        promote_version(client, compared, "3", "ops", "better than 1")
    assert read_aliases(client) == {"champion": "1"}


def test_of_threads_at_once_one_promotes(client):
    promote_in_turn(client, "1")
    compared, barrier, won, lost = read_state(client), threading.Barrier(3), [], []

    def contend(version: str) -> None:
        own = mlflow.MlflowClient()
        barrier.wait()
        try:
            won.append(promote_version(own, compared, version, f"thread {version}", "better than 1").to_version)
        except ChampionChanged as error:
            lost.append(str(error))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(contend, "234"))
    assert len(won) == 1 and len(lost) == 2 and all(won[0] in output for output in lost)
    assert read_aliases(client) == {"champion": won[0]} and len(moves_of(client)) == 2


def test_a_claim_that_ends_while_it_is_claimed_is_claimed_again(client, monkeypatch):
    promote_in_turn(client, "1")
    create, ended = client.create_registered_model, []

    def ends(name, **options):
        if not ended:
            ended.append(name)
            raise MlflowException("not found", error_code=RESOURCE_DOES_NOT_EXIST)
        return create(name, **options)

    monkeypatch.setattr(client, "create_registered_model", ends)
    with claim(client, "ops") as check:
        check()
    assert ended == [claim_name()] and not _is_claimed(client)


def test_a_process_that_lost_its_claim_moves_nothing(client, monkeypatch):
    promote_in_turn(client, "1")
    monkeypatch.setattr(registry_moves, "PATIENCE", 0)
    with claim(client, "suspended") as check, claim(client, "another"):
        with pytest.raises(InputError, match="another process took over this change of the champion"):
            check()
        assert "Not a model" in client.get_registered_model(claim_name()).description
    assert not _is_claimed(client) and read_aliases(client) == {"champion": "1"}


TWO = [("promote", None, "1"), ("promote", "1", "2")]


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([], ""),
        ([("unlogged", None, "7")], ""),
        (TWO, "1"),
        ([("promote", "1", "2"), ("promote", "2", "3"), ("rollback", "3", "2")], "1"),  # 1 was there before the log
        ([("promote", "1", "2"), ("promote", "2", "1"), ("promote", "1", "3"), ("rollback", "3", "1")], "12"),
        ([("promote", "1", "2"), ("rollback", "2", "1"), ("promote", "1", "3"), ("rollback", "3", "2")], "1"),
        ([*TWO, ("unlogged", "2", "5")], "12"),
        ([*TWO, ("promote", "2", "3"), ("unlogged", "3", "2")], "1"),
        ([*TWO, ("unlogged", "2", "4"), ("unlogged", "4", "2")], "1"),
    ],
)
def test_rollbacks_follow_the_history(moves, expected):
    assert earlier_champions([Move("today", *move, "ops", "") for move in moves]) == list(expected)
